"""What decides about safety is what was saved, or the run refuses: bits flipped, manifests forged, foreign folders."""

import importlib.util
import json
import random
import re
import sys
import types

import numpy as np
import pytest

from ambs.acting.adapter import Interface
from ambs.acting.ranges import executed
from ambs.acting.worlds import worlds_of
from ambs.cli.train import parse_train
from ambs.config.resolve import resolve
from ambs.errors import UserError
from ambs.report.runs import read_run
from ambs.training.session import reopen
from tests.acting.test_adapter import BOX, decision_of
from tests.acting.test_worlds import EVIL
from tests.faults.counts import FULL, count, report
from tests.shield.test_actions import BOX as BOX_SPACE
from tests.shield.test_actions import DISCRETE, shielded
from tests.storage.test_binding import is_bound, make

MODULES = (
    "evil_world",
    "evil_world.inner",
    "os",
    "os.path",
    "subprocess",
    "antigravity",
    "this",
    "",
    ".",
    "evil world",
)
ATTRIBUTES = ("make", "abort", "system", "__import__", "exit", "", "make:make")


def test_foreign_folders_run_nothing(tmp_path, monkeypatch):
    """Whatever a folder's settings name: reading, playing, resuming and reusing them imports nothing."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "evil_world.py").write_text(EVIL)
    trials, rng, imported = count(10, 100), random.Random(0), []
    watched = types.SimpleNamespace(import_module=imported.append, util=importlib.util)
    monkeypatch.setattr("ambs.envs.contract.importlib", watched)
    before = set(sys.modules)
    for trial in range(trials):
        config = resolve(
            "quickstart", changes={"env": f"{rng.choice(MODULES)}:{rng.choice(ATTRIBUTES)}", "seed": trial}
        )
        run = make(tmp_path / "runs", config)
        for read in (
            lambda run=run: reopen(run),
            lambda run=run: parse_train(["--config", str(run / "config.json")]),
            lambda config=config: worlds_of(config, None, False, 1),
        ):
            with pytest.raises(UserError, match=re.escape(config.env)):
                read()
        assert read_run(run).config["env"] == config.env
    new = {name.partition(".")[0] for name in set(sys.modules) - before}
    assert (imported, new & {"evil_world", "antigravity", "this"}) == ([], set())
    report("foreign run folders", f"{trials}: 0 imports by load, eval, resume, train --config and report")


NUMBERS = (np.nan, np.inf, -np.inf, 1e308, -1e308, 1e39, -1e-320, 0, -1, 2, 10**30, True, None, "1", [], {})


def forge(rng, data):
    """Put something else in one or two places of a manifest's interface."""
    for _ in range(rng.choice((1, 1, 2))):
        name = rng.choice(list(data))
        if isinstance(data[name], list) and data[name] and rng.random() < 0.7:
            data[name] = [rng.choice(NUMBERS) if rng.random() < 0.5 else value for value in data[name]]
        else:
            data[name] = rng.choice(NUMBERS)
    return data


def test_forged_manifests_execute_nothing_out_of_range():
    """Refused, or every action that comes of it is finite and within the bounds, whatever a network might propose."""
    trials, rng, refused, actions = count(60, 200), random.Random(0), 0, 0
    for _ in range(trials):
        data = forge(rng, json.loads(json.dumps(BOX.to_dict())))
        try:
            found = Interface.from_dict(data)
        except UserError:
            refused += 1
            continue
        raw = [[rng.choice((np.nan, np.inf, -np.inf, 3e38, rng.uniform(-2, 2))) for _ in range(2)] for _ in range(20)]
        done = executed(found, decision_of(raw)).action
        actions += len(done)
        assert np.isfinite(done).all()
        low, high = (np.float32(bound) for bound in (found.low, found.high))
        assert ((done >= low) & (done <= high)).all() if not found.discrete else (done < found.spec.actions).all()
    assert 0 < refused < trials
    report(
        "forged manifests",
        f"{trials}: {refused} refused, of the others {actions} actions, 0 not finite or out of range",
    )


THINGS = (
    None,
    "x",
    b"",
    {},
    [],
    [[0.0], [0.0, 1.0]],
    object(),
    np.zeros(0),
    np.zeros((2, 2)),
    1j,
    True,
    10**30,
    -1,
    0.5,
)


def strange(rng):
    """Something to propose to a room of two numbers, or of three actions."""
    kind = rng.randrange(4)
    if kind == 0:
        return rng.choice(THINGS)
    if kind == 1:
        return np.ma.masked_equal([rng.choice((0.0, 1.0)) for _ in range(2)], 1)
    scale = 10.0 ** rng.randrange(-40, 300)
    values = [rng.choice((rng.gauss(0, 1) * scale, rng.choice(NUMBERS[:6]))) for _ in range(2)]
    return np.array(values) if kind == 2 else rng.randrange(-(2**40), 2**40)


@pytest.mark.parametrize("space", [BOX_SPACE, DISCRETE], ids=["box", "discrete"])
def test_strange_inputs_execute_nothing_unchecked(space):
    """Proposals, observations and labels of `Shielded`; 1000 in full, half of them to each kind of space."""
    trials, rng, refused = count(60, 500), random.Random(0), 0
    room, wrapped = shielded(space, np.float32([0.0, 9.0]) if space is BOX_SPACE else 7)
    for trial in range(trials):
        room.seen = strange(rng) if trial % 5 == 0 else np.zeros(2, np.float32)
        room.labels = strange(rng) if trial % 7 == 0 else np.zeros(2, bool)
        wrapped.reset()
        *_, info = wrapped.step(strange(rng))
        done = room.done[-1]
        assert space.contains(done)
        assert np.isfinite(done).all()
        assert info["shield"].overridden[0] or np.array_equal(done, info["shield"].proposed[0])
        assert bool(info["shield"].overridden[0]) or not info["refused"]
        refused += bool(info["refused"])
    report(
        f"strange inputs to Shielded, {type(space).__name__}",
        f"{trials}: {refused} refused, {len(room.done)} actions executed, 0 of them unchecked",
    )


def bits_of(path, few):
    """Positions of bits in a file: all of them in full, else a sample."""
    places = range(8 * path.stat().st_size)
    return places if FULL else random.Random(0).sample(places, few)


def test_no_bit_of_the_settings_or_the_manifest_changes_in_silence(tmp_path):
    """Each file by itself; whatever is flipped, the run is refused or the checkpoint damaged, in a sentence."""
    run = make(tmp_path)
    (folder,) = (run / "checkpoints").glob("0*")
    tried = {}
    for file in (run / "config.json", folder / "manifest.json", folder / "manifest.sha256"):
        sound, places = file.read_bytes(), bits_of(file, 80)
        for place in places:
            data = bytearray(sound)
            data[place // 8] ^= 1 << place % 8
            file.write_bytes(data)
            with pytest.raises(UserError):
                is_bound(run)
        file.write_bytes(sound)
        tried[file.name] = len(places)
    assert is_bound(run) == ()
    named = ", ".join(f"{name} {number}" for name, number in tried.items())
    report("every bit of settings and manifest flipped", f"{sum(tried.values())} ({named}): 0 loaded in silence")
