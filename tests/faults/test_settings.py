"""Settings made of nonsense: each is taken or refused in a sentence, never with a traceback."""

import json
import random
import tempfile
from pathlib import Path

import pytest

from ambs.cli.train import parse_train
from ambs.config import PRESETS
from ambs.config.resolve import changed, from_dict, resolve, to_dict
from ambs.errors import UserError
from tests.faults.counts import count, report

VALUES = [
    None, True, False, 0, -1, 1, 2, 3, 7, 100, 513, 4097, 10**9, 2**63, -(2**70), 10**400, 0.0, -0.0, 0.5, 1.5, 0.99999999,
    1e-9, 1e-320, 1e308, -1e308, float("nan"), float("inf"), float("-inf"), "", "x", "\0", "é" * 1000, "labels", "max",
    "mode", "mean", "sample", "paper", "lag", "P>=0.9 [ G<=30 !hazard ]", "(" * 500, [], [1, 2], [[]], [None], {}, {"a": 1},
]  # fmt: skip
NAMES = ["", "x", "__class__", "\n", "discont"]


def nonsense(rng, places):
    """A nested mapping of a few settings, some of them unknown."""
    changes = {}
    for _ in range(rng.choice((1, 1, 2, 4))):
        *groups, name = rng.choice(places)
        here = changes
        for group in groups:
            here = here.setdefault(group, {})
            if not isinstance(here, dict):
                break
        if isinstance(here, dict):
            here[name if rng.random() < 0.95 else rng.choice(NAMES)] = rng.choice(VALUES)
    return changes


def places_in(settings, before=()):
    for name, value in settings.items():
        yield (*before, name)
        if isinstance(value, dict):
            yield from places_in(value, (*before, name))


def test_fuzzed_settings():
    """Whatever is accepted can be written to a run folder and read back."""
    trials, rng = count(300, 5000), random.Random(0)
    places = list(places_in(to_dict(resolve("quickstart"))))
    taken = 0
    for _ in range(trials):
        changes = nonsense(rng, places)
        try:
            config = resolve(rng.choice(list(PRESETS)), changes=changes)
        except UserError as error:
            assert str(error)
            continue
        taken += 1
        assert from_dict(json.loads(json.dumps(to_dict(config), allow_nan=False))) == config
    assert taken > trials // 50
    report("fuzzed settings", f"{trials}: {taken} accepted, {trials - taken} refused in a sentence, 0 tracebacks")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{",
        "3",
        '{"env": 3}',
        "[" * 100_000,
        '{"seed": 1, "seed": 2}',
        '{"training": {"frames": 1e999}}',
        "\0",
    ],
)
def test_files_that_are_no_settings(text):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "settings.json"
        path.write_text(text)
        with pytest.raises(UserError):
            parse_train(["--config", str(path)])
        assert [file.name for file in Path(folder).iterdir()] == ["settings.json"]


def test_a_file_that_names_a_method_trains_it(tmp_path):
    """Not another one under its name; options on the command line may not contradict it."""
    file = tmp_path / "settings.json"
    file.write_text('{"method": "lag"}')
    assert parse_train(["--config", str(file)]).settings == resolve(method="lag")
    with pytest.raises(UserError, match=r"method is asked to be copt, but .* method lag"):
        parse_train(["--config", str(file), "--method", "copt"])
    with pytest.raises(UserError, match="--shield is said to be off and on"):
        parse_train(["--config", str(file), "--shield", "off", "--shielded"])


def test_numbers_too_long_to_print():
    with pytest.raises(UserError, match=r"agent\.alpha must be a number"):
        changed(resolve("quickstart"), {"agent": {"alpha": 10**400}})
