"""A checkpoint belongs to the settings it was made with: anything else is refused, and the field that differs is named."""

import json
import os
import re
import shutil

import pytest

from ambs.config.resolve import from_dict, resolve, to_dict
from ambs.errors import UserError
from ambs.storage import checkpoint
from ambs.storage.binding import SETTINGS, bind, check_bound
from ambs.storage.run_folder import RunFolder
from tests.storage.checkpoints import reseal

CONFIG = resolve("quickstart", changes={"env": "ambs/Grid-v0", "psi": "!hazard"})


def make(root, config=CONFIG, **interface):
    """A run folder with one checkpoint, in which nothing was trained; its bytes on disk are all that is asked about here."""
    folder = RunFolder.create(root, env="Grid", method="copt", seed=config.seed, config=to_dict(config), command=[])
    there = {"psi": "!hazard", "frames": config.training.action_repeat, "cost": config.safety.cost} | interface
    checkpoint.save(folder.checkpoints, 10, {}, {SETTINGS: bind(folder), "interface": there})
    folder.close()
    return folder.path


def is_bound(path, **options):
    """Load as `ambs.load` does, up to where settings and checkpoint are compared."""
    folder = RunFolder.open(path)
    config = from_dict(folder.config)
    return check_bound(checkpoint.load(folder.checkpoints), folder, config, **options)


def edit(path, group, name, value):
    record = json.loads((path / "config.json").read_text())
    (record["config"][group] if group else record)[name] = value
    (path / "config.json").write_text(json.dumps(record, indent=1, ensure_ascii=False))


def test_what_was_saved_is_taken(tmp_path):
    assert is_bound(make(tmp_path)) == ()


@pytest.mark.parametrize(
    ("group", "name", "value", "sentence"),
    [
        ("shield", "safety_level", 0.7, "shield.safety_level is 0.7 in config.json, and was 0.3"),
        ("shield", "horizon", 1, "shield.horizon is 1 in config.json, and was 3"),
        ("", "seed", 7, "seed is 7 in config.json, and was 0"),
        ("", "device", "other", "device is 'other' in config.json, and was None"),
        ("", "extra", 1, "extra is 1 in config.json, and was missing"),
    ],
)
def test_a_setting_that_was_changed_is_named(tmp_path, group, name, value, sentence):
    path = make(tmp_path)
    edit(path, group, name, value)
    for trust in (False, True):
        with pytest.raises(UserError, match=f"was saved with other settings: {re.escape(sentence)}$"):
            is_bound(path, trust=trust)


def test_a_run_that_is_to_go_on_for_longer_keeps_its_checkpoints(tmp_path, monkeypatch):
    """Settings and digest change in one step: at no moment does the folder contradict itself."""
    path = make(tmp_path)
    late, run = RunFolder.open(path), RunFolder.open(path)
    run.claim()
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError("killed")))
        with pytest.raises(OSError, match="killed"):
            run.extend(10**6)
    assert is_bound(path) == ()
    run.claim()
    run.extend(10**6)
    assert is_bound(path) == ()
    assert RunFolder.open(path).config["training"]["frames"] == 10**6
    # The lock has moved with the file, and who read the old one is not let in.
    with pytest.raises(UserError, match="is being written by another process"):
        RunFolder.open(path).claim()
    run.close()
    with pytest.raises(UserError, match="has changed while it was read"):
        late.claim()
    # Nothing else may differ, and nobody else may say so.
    edit(path, "shield", "safety_level", 0.7)
    with pytest.raises(UserError, match=r"shield\.safety_level is 0\.7 .* and was 0\.3$"):
        is_bound(path)
    edit(path, "shield", "safety_level", 0.3)
    edit(path, "", "earlier", [])
    with pytest.raises(UserError, match=r"training\.frames is 1000000 .* and was 80000$"):
        is_bound(path)


def test_the_same_values_in_other_bytes_are_refused(tmp_path):
    path = make(tmp_path)
    file = path / "config.json"
    file.write_text(file.read_text() + "\n")
    with pytest.raises(UserError, match="the same values in other bytes"):
        is_bound(path)


def test_checkpoints_of_another_run_are_refused(tmp_path):
    """Of another seed, and of another Ψ."""
    path = make(tmp_path / "mine")
    for changes, sentence in (
        ({"seed": 3}, "seed is 0 .* and was 3"),
        ({"psi": "!goal"}, "psi is '!hazard' .*was '!goal'"),
    ):
        other = make(tmp_path / "theirs", resolve("quickstart", changes=to_dict(CONFIG) | changes))
        shutil.rmtree(path / "checkpoints")
        shutil.copytree(other / "checkpoints", path / "checkpoints")
        with pytest.raises(UserError, match=sentence):
            is_bound(path)


@pytest.mark.parametrize("damage", [{"format": 1}, {}])
def test_what_does_not_tell_its_settings_needs_trust(tmp_path, damage):
    """Format 1, and a manifest whose digest is missing."""
    path = make(tmp_path)
    (manifest,) = (path / "checkpoints").glob("*/manifest.json")
    meta = json.loads(manifest.read_text())["meta"]
    del meta[SETTINGS]
    reseal(manifest.parent, meta=meta, **damage)
    with pytest.raises(UserError, match=rf"has format {damage.get('format', 2)} and no digest.*--trust"):
        is_bound(path)
    (sentence,) = is_bound(path, trust=True)
    assert "because you trust it" in sentence
    # Trust is no reason to take what contradicts itself.
    meta["interface"]["cost"] = 9.0
    reseal(manifest.parent, meta=meta)
    with pytest.raises(UserError, match=r"its cost is 9\.0, and the settings say 0\.8"):
        is_bound(path, trust=True)


@pytest.mark.parametrize("changes", [{"psi": "!goal"}, {"psi": 3}, {"frames": 9}, {"cost": "x"}])
def test_an_interface_of_other_settings_is_refused(tmp_path, changes):
    with pytest.raises(UserError, match="does not fit"):
        is_bound(make(tmp_path, **changes))
