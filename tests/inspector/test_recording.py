"""Reading recordings, what is found in them, and what else than a page is made of them; by hand-worked answers."""

import base64
import csv
import dataclasses
import gc
import io
import weakref

import numpy as np
import pytest
from PIL import Image

from ambs.cli.main import main
from ambs.errors import UserError
from ambs.inspector.audit import BACKUP, FALSE_ALARM, MISS, OPTIMIST, as_csv, audit, not_examined
from ambs.inspector.data import LARGEST_PAGE, page_data
from ambs.inspector.document import document
from ambs.inspector.recording import read
from ambs.recording.schema import Episode
from tests.inspector.recordings import TRUST, changed, make_recording


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return make_recording(tmp_path_factory.mktemp("one"))


def test_audit_by_hand(path):
    """Five steps, n = 2: step 0 accepted, 1 overridden in vain, 2 accepted and 3 overridden before a violation in 3, 4 not
    really safe."""
    arrays = read(path).arrays()
    shape = {name: array[:5].copy() for name, array in arrays.items() if array.shape[:1] == (80,)}
    shape["overridden"] = np.array([False, True, False, True, False])
    shape["frame_violations"] = np.zeros((5, 2), bool)
    shape["frame_labels"] = np.zeros((5, 2, 2), bool)
    shape["frame_violations"][3, 0] = shape["frame_labels"][3, 0, 0] = True
    shape["traces_used"] = np.full(5, 20)
    shape["p_safe"] = np.array([1.0, 0.2, 0.9, 0.1, 0.95])
    shape |= {"twin.step": np.array([1, 3]), "twin.violation": np.array([0, 1]), "twin.taken": np.array([2, 2])}
    shape["twin.labels"] = np.zeros((2, 2, 2, 2), bool)
    shape |= {"truth.step": np.array([0, 4]), "truth.safe": np.array([99, 40]), "truth.futures": np.array([100, 100])}
    facts = read(path).facts
    facts = dataclasses.replace(facts, steps=5, settings=facts.settings | {"horizon": 2})
    found = audit(Episode.from_arrays("by-hand", facts, shape))
    assert [(entry.step, entry.kind) for entry in found] == [(1, FALSE_ALARM), (2, MISS), (3, BACKUP), (4, OPTIMIST)]
    assert found[0].text == "overridden; from the same state, unshielded, the formula held for 2 steps"
    assert found[1].text == "accepted with p̃ = 0.9; hazard broke the formula 2 steps on"
    assert found[3].text == "accepted with p̃ = 0.95; the true probability was 0.4, below 0.7"
    rows = list(csv.reader(io.StringIO(as_csv([Episode.from_arrays("=by-hand", facts, shape)]))))
    assert rows[1][:6] == ["'=by-hand", "1", "false alarm", "0.2", "20", str(int(shape["violating"][1]))]
    off = Episode.from_arrays("off", dataclasses.replace(facts, shield=False), shape)
    assert audit(off) == []


def test_what_was_not_examined_is_counted(path):
    """Futures are stored of the first ten overrides only; step 3 was unsafe already, and has none."""
    recording = read(path)
    arrays = recording.arrays()
    with_futures = int((arrays["overridden"] & (arrays["traces_used"] > 0)).sum())
    near = int((~arrays["overridden"] & (arrays["violating"] > 0)).sum())
    assert recording.not_examined == (with_futures - 10, near)
    told = f"{with_futures - 10} overrides and {near} near misses"
    assert f"Not examined: {told}. " in document(recording, [])
    assert list(csv.reader(io.StringIO(as_csv([recording]))))[-1][2:] == ["not examined", "", "", "", told]
    assert recording.examination.futures is not None
    whole = dataclasses.replace(recording.examination.futures, step=np.arange(80))
    seen = dataclasses.replace(recording, examination=dataclasses.replace(recording.examination, futures=whole))
    assert seen.not_examined == (0, 0)
    assert not_examined(seen) == ""


def test_settings_are_rounded_for_reading(path):
    """Δ in force makes ε a share of what it was."""
    recording = read(path)
    settings = recording.facts.settings | {"approximation_error": 0.326666666667, "safety_level": 0.98}
    page = document(dataclasses.replace(recording, facts=dataclasses.replace(recording.facts, settings=settings)), [])
    assert ">0.327</output>" in page
    assert ">0.326666666667<" not in page


def test_traces_drawn_again_fill_up_what_the_rule_left(path):
    recording = read(path)
    data = page_data(recording)
    drawn = np.array(data["traces"]["drawn"])
    again = recording.arrays()["futures.step"]
    assert (drawn[again] == 100).all()
    rest = np.setdiff1d(np.arange(80), again)
    np.testing.assert_array_equal(drawn[rest], recording.arrays()["traces_used"][rest])
    assert data["map"]["items"][1] is None
    assert data["map"]["items"][0] == [[0, 1, 1, 0.3], [1, 0, 0, 0.4]]


def test_pages_stay_small(path, monkeypatch, tmp_path):
    seen = make_recording(tmp_path, steps=20, image=32)
    assert len(page_data(read(seen))["pictures"]) == 20
    monkeypatch.setattr("ambs.inspector.data.LARGEST_PAGE", 20_000)
    assert page_data(read(seen))["pictures"] == []
    assert "larger than 20 MB" in document(read(seen), [])
    assert LARGEST_PAGE <= 20_000_000


def test_pictures_of_two_cameras_are_shown_side_by_side(tmp_path):
    seen = make_recording(tmp_path, steps=20, image=16, channels=6)
    with np.load(seen) as stored:
        ahead, behind = np.split(stored["observation.image"], 2, axis=-1)
        futures = stored["futures.image"]
    recording = read(seen)
    np.testing.assert_array_equal(recording.arrays()["observation.image"], np.concatenate([ahead, behind], axis=2))
    np.testing.assert_array_equal(recording.arrays()["futures.image"][..., :16, :], futures[..., :3])
    data = page_data(recording)
    assert data["wide"]
    assert Image.open(io.BytesIO(base64.b64decode(data["pictures"][0].split(",")[1]))).size == (32, 16)
    assert not page_data(read(make_recording(tmp_path, steps=20, image=16)))["wide"]
    changed(seen, tmp_path, arrays={"observation.image": np.zeros((20, 16, 16, 4), np.uint8)}, without=PICTURES)
    with pytest.raises(UserError, match=r"observation.image must have 3 channels, or 6 of two cameras, got 4"):
        read(seen)


PICTURES = ("futures.image", "twin.image")


def test_thresholds_that_overflow_are_numbers(path, tmp_path):
    settings = read(path).facts.settings | {"critics": "max", "discount": 1e-30, "threshold_exponent": -40.0}
    for cost in (1.0, 0.0):
        recording = read(changed(path, tmp_path, facts={"settings": settings | {"cost": cost}}))
        assert all(np.isfinite(page_data(recording)["settings"]["cost_thresholds"]))


def test_how_far_a_shield_can_be_trusted(path, tmp_path):
    """Figures as they were measured; where that was another agent or question, it is said; where nothing was, how to."""
    bare = document(read(path), [])
    assert "ambs foresight RUN" in bare
    assert "0.3, as asked for" in bare
    assert "its clone" not in bare
    assert "its clone acts in its place" in document(read(changed(path, tmp_path, facts={"policy": "given"})), [])
    settings = read(path).facts.settings
    told = {"foresight": TRUST, "checkpoint": 500_000, "settings": settings | {"asked": 0.1, "labels": "mode"}}
    page = document(read(changed(path, tmp_path, facts=told)), [])
    for text in (
        "0.84 [0.81, 0.87]", "0.52 [0.48, 0.56]", "0.71 [0.6, 0.8]", "<dd>0.4</dd>", "0.031 [0.02, 0.04]", "20,480 steps",
        "0.3, where 0.1 was asked for", "Measured at 480,000 frames; this episode was played by the agent at 500,000.",
        "Measured with labels “sample”; this episode&#x27;s are “mode”.",
    ):  # fmt: skip
        assert text in page
    assert "ambs foresight RUN" not in page
    same = {"foresight": TRUST, "checkpoint": 480_000}
    assert "Measured" not in document(read(changed(path, tmp_path, facts=same)), [])


def run(capsys, *arguments):
    with pytest.raises(SystemExit) as stop:
        main(["inspect", *map(str, arguments)])
    return stop.value.code, capsys.readouterr()


def test_what_was_looked_into_is_seen_first(path):
    """Of overrides; where none was, the first of them."""
    recording = read(path)
    first, second, *_ = recording.overrides
    for stored, wanted in (([second], second), ([second, first], first), ([], first)):
        futures = dataclasses.replace(recording.examination.futures, step=np.array(stored, int))
        found = dataclasses.replace(recording.examination, futures=futures)
        assert dataclasses.replace(recording, examination=found).first_to_see == wanted
    assert page_data(recording)["first"] == recording.first_to_see in recording.overrides


def test_the_verb(path, tmp_path, capsys):
    make_recording(tmp_path, steps=30, psi="!\ud800")
    make_recording(tmp_path, name="episode-#1?%41-on", steps=30, seed=3, psi="!\ud800")
    code, said = run(capsys, tmp_path)
    assert code == 0
    assert "Open " in said.out
    assert 'href="episode-%231%3F%2541-on.html"' in (tmp_path / "episode-0000-on.html").read_text()
    (tmp_path / "episode-#1?%41-on.npz").rename(tmp_path / "episode-0001-on.npz")
    (tmp_path / "episode-#1?%41-on.json").rename(tmp_path / "episode-0001-on.json")
    code, said = run(capsys, tmp_path, "--figure", tmp_path / "step.svg", "--step", 5, "--audit", tmp_path / "a.csv")
    assert (tmp_path / "step.svg").read_text().startswith("<?xml")
    assert (tmp_path / "a.csv").read_text().startswith("episode,step,finding")
    code, said = run(capsys, tmp_path, "--episode", "episode-0001-on", "--figure", tmp_path / "step.png")
    assert (tmp_path / "step.png").read_bytes()[:4] == b"\x89PNG"
    for arguments, sentence in (
        ((tmp_path / "nowhere",), "neither a folder"),
        ((tmp_path, "--episode", "7"), "there is no '7'"),
        ((tmp_path, "--figure", "x.gif"), "must end in .png or .svg"),
        ((tmp_path, "--figure", tmp_path / "y.png", "--step", 30), "has steps 0 to 29"),
    ):
        code, said = run(capsys, *arguments)
        assert code == 2
        assert sentence in said.err
    (tmp_path / "episode-0001-on.npz").write_bytes(b"PK")
    code, said = run(capsys, tmp_path)
    assert code == 0
    assert "episode-0001-on.npz is not a whole recording" in said.out
    (tmp_path / "empty").mkdir()
    assert "holds no recorded episode" in run(capsys, tmp_path / "empty")[1].err


@pytest.mark.process
def test_no_learning_code_is_imported():
    import subprocess
    import sys

    code = "import sys; import ambs.inspector.write, ambs.inspector.figure; print('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


@pytest.mark.process
def test_one_recording_at_a_time(tmp_path, monkeypatch, capsys):
    """However many there are, no more than the one that is read and the one before it are in memory."""
    for number in range(4):
        make_recording(tmp_path, name=f"episode-000{number}-on", steps=5)
    alive, most = weakref.WeakSet(), []

    def watched(path):
        alive.add(found := read(path))
        gc.collect()
        most.append(len(alive))
        return found

    # A frozen dataclass that compares by value has no hash of its own.
    monkeypatch.setattr(Episode, "__hash__", object.__hash__)
    monkeypatch.setattr("ambs.inspector.write.read", watched)
    assert run(capsys, tmp_path)[0] == 0
    assert run(capsys, tmp_path, "--audit", tmp_path / "audit.csv")[0] == 0
    assert len(most) == 4 + 4 + 4 + 4
    assert max(most) <= 2
