"""Reading recordings, what is found in them, and what else than a page is made of them; by hand-worked answers."""

import base64
import csv
import gc
import io
import json
import weakref
import zipfile

import numpy as np
import pytest
from PIL import Image

from ambs.cli.main import main
from ambs.errors import UserError
from ambs.inspector.audit import BACKUP, FALSE_ALARM, MISS, OPTIMIST, as_csv, audit
from ambs.inspector.data import LARGEST_PAGE, page_data
from ambs.inspector.document import document
from ambs.inspector.recording import LARGEST, Recording, read
from tests.inspector.recordings import TRUST, changed, make_recording


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return make_recording(tmp_path_factory.mktemp("one"))


def test_audit_by_hand(path):
    """Five steps, n = 2: step 0 accepted, 1 overridden in vain, 2 accepted and 3 overridden before a violation in 3, 4 not
    really safe."""
    arrays = dict(read(path).arrays)
    shape = {name: array[:5].copy() for name, array in arrays.items() if array.shape[:1] == (80,)}
    shape["overridden"] = np.array([False, True, False, True, False])
    shape["frame_violations"] = np.zeros((5, 2), bool)
    shape["frame_labels"] = np.zeros((5, 2, 2), bool)
    shape["frame_violations"][3, 0] = shape["frame_labels"][3, 0, 0] = True
    shape["traces_used"] = np.full(5, 20)
    shape["p_safe"] = np.array([1.0, 0.2, 0.9, 0.1, 0.95])
    shape |= {"twin.step": np.array([1, 3]), "twin.violation": np.array([0, 1]), "twin.taken": np.array([2, 2])}
    shape |= {"truth.step": np.array([0, 4]), "truth.safe": np.array([99, 40]), "truth.futures": np.array([100, 100])}
    facts = read(path).facts
    facts = facts | {"steps": 5, "settings": facts["settings"] | {"horizon": 2}}
    found = audit(Recording("by-hand", facts, shape))
    assert [(entry.step, entry.kind) for entry in found] == [(1, FALSE_ALARM), (2, MISS), (3, BACKUP), (4, OPTIMIST)]
    assert found[0].text == "overridden; from the same state, unshielded, the formula held for 2 steps"
    assert found[1].text == "accepted with p̃ = 0.9; hazard broke the formula 2 steps on"
    assert found[3].text == "accepted with p̃ = 0.95; the true probability was 0.4, below 0.7"
    rows = list(csv.reader(io.StringIO(as_csv([Recording("=by-hand", facts, shape)]))))
    assert rows[1][:6] == ["'=by-hand", "1", "false alarm", "0.2", "20", str(int(shape["violating"][1]))]
    off = Recording("off", facts | {"shield": False}, shape)
    assert audit(off) == []


def test_traces_drawn_again_fill_up_what_the_rule_left(path):
    recording = read(path)
    data = page_data(recording)
    drawn = np.array(data["traces"]["drawn"])
    again = recording.arrays["futures.step"]
    assert (drawn[again] == 100).all()
    rest = np.setdiff1d(np.arange(80), again)
    np.testing.assert_array_equal(drawn[rest], recording.arrays["traces_used"][rest])
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
    np.testing.assert_array_equal(recording.arrays["observation.image"], np.concatenate([ahead, behind], axis=2))
    np.testing.assert_array_equal(recording.arrays["futures.image"][..., :16, :], futures[..., :3])
    data = page_data(recording)
    assert data["wide"]
    assert Image.open(io.BytesIO(base64.b64decode(data["pictures"][0].split(",")[1]))).size == (32, 16)
    assert not page_data(read(make_recording(tmp_path, steps=20, image=16)))["wide"]
    changed(seen, tmp_path, arrays={"observation.image": np.zeros((20, 16, 16, 4), np.uint8)}, without=PICTURES)
    with pytest.raises(UserError, match=r"observation.image must have 3 channels, or 6 of two cameras, got 4"):
        read(seen)


PICTURES = ("futures.image", "twin.image")


def test_damage_gets_a_sentence(path, tmp_path):
    def refusal(match):
        with pytest.raises(UserError, match=match) as caught:
            read(tmp_path / "episode-0000-on.npz")
        assert "\n" not in str(caught.value)

    target = tmp_path / "episode-0000-on.npz"
    facts = json.loads(path.with_suffix(".json").read_text())
    changed(path, tmp_path)
    whole = target.read_bytes()
    assert read(target).steps == 80
    for length in (0, 100, len(whole) // 2, len(whole) - 10):
        target.write_bytes(whole[:length])
        refusal("is not a whole recording")
    target.write_bytes(whole[:5000] + bytes(200) + whole[5200:])
    refusal("is not a whole recording|must be|lacks")
    changed(path, tmp_path, arrays={"reason": np.array([{}], object)})
    refusal("is not a whole recording")
    with zipfile.ZipFile(target, "w") as archive:
        archive.writestr("words.txt", "nothing")
    refusal("lacks the array")
    changed(path, tmp_path, without=("frame_violations",))
    refusal("lacks the array frame_violations")
    changed(path, tmp_path, arrays={"p_safe": np.zeros(79, np.float32)})
    refusal(r"p_safe must be numbers of shape \(80\), got float32 of shape \(79,\)")
    changed(path, tmp_path, arrays={"futures.shown": np.ones((10, 2, 5), int)})
    refusal(r"futures.shown must be whole numbers of shape \(10, 3, P\)")
    changed(path, tmp_path, arrays={"twin.step": np.full(10, 80)})
    refusal("points beyond the 80 steps")
    for safe, futures in ((0, 0), (-1, 50), (51, 50)):
        changed(path, tmp_path, arrays={"truth.safe": np.full(10, safe), "truth.futures": np.full(10, futures)})
        refusal(r"truth.safe must count some of truth.futures")
    changed(path, tmp_path, arrays={"picture": np.zeros((80, 1, 70_000, 3), np.uint8)})
    refusal("pictures of picture are too large, 1 × 70000")
    changed(path, tmp_path, arrays={"twin.image": np.zeros((10, 3, 1, 30_000, 3), np.uint8)})
    refusal("pictures of twin.image are too large, 1 × 30000")
    for name in ("action", "proposed"):
        changed(path, tmp_path, arrays={name: np.zeros((80, 2, 2))})
        refusal(rf"{name} must be numbers of shape \(80, \?\), got float64 of shape \(80, 2, 2\)")
    settings = facts["settings"]
    for told, match in (
        ({"format": 1}, "an older version"), ({"format": "x" * 500}, "another version"), ({"steps": True}, "steps must be"),
        ({"settings": settings | {"chunk": None}}, "chunk must be"), ({"atoms": [1]}, "atoms must be"),
        ({"settings": settings | {"traces": 10**6, "chunk": 1}}, "can be shown, got 1000000 in chunks of 1"),
        ({"settings": settings | {"chunk": 1, "traces": 501}}, "500 chunks"), ({"steps": 10**400}, "steps must be"),
        ({"settings": settings | {"failure_probability": 1e-200}}, "failure_probability must be a probability"),
        ({"settings": settings | {"cost": 10**400}}, "cost must be"), ({"thresholds": [10**400]}, "thresholds must"),
        ({"foresight": TRUST | {"auroc": {"mean": "<b>"}}}, "foresight is not what"), ({"foresight": 1}, "foresight is not"),
        ({"checkpoint": "x"}, "checkpoint must be"), ({"settings": settings | {"asked": 2}}, "asked must be a probability"),
        ({"settings": []}, "does not describe"), ({"thresholds": 1}, "thresholds must"), ({"reasons": [1]}, "reasons must be"),
        ({"shield": None}, "shield must be true or false"), ({"shield": "on"}, "shield must be true or false"),
    ):  # fmt: skip
        changed(path, tmp_path, facts=told)
        refusal(match)
    changed(path, tmp_path)
    for member, data in foreign_members().items():
        with zipfile.ZipFile(target, "w", zipfile.ZIP_LZMA if member == "damaged" else zipfile.ZIP_STORED) as archive:
            archive.writestr("labels" if member == "text" else "labels.npy", data)
        if member == "damaged":
            whole = target.read_bytes()
            target.write_bytes(whole.replace(whole[60:80], bytes(20), 1))
        refusal("is not a whole recording")
    (tmp_path / "episode-0000-on.json").write_text("[" * 100_000)
    refusal("cannot be read")
    (tmp_path / "episode-0000-on.json").write_text('{"format": 2')
    refusal("cannot be read")
    (tmp_path / "episode-0000-on.json").unlink()
    refusal("is missing")


def test_whatever_is_in_a_file_it_is_drawn_or_refused(path, tmp_path):
    """Numbers turned into others of the same kind, and arrays cut short: a page, or a sentence, never a traceback."""
    rng = np.random.default_rng(0)
    whole = read(path)
    told = json.loads(path.with_suffix(".json").read_text())
    drawn = 0
    for name, array in whole.arrays.items():
        if array.dtype.kind == "f":
            odd = np.where(rng.uniform(size=array.shape) < 0.5, array, rng.choice([np.nan, np.inf, -1e30, 1e30]))
        elif array.dtype.kind in "iu":
            odd = np.where(rng.uniform(size=array.shape) < 0.5, array, rng.choice([-(2**15), -1, 2**14])).astype(
                array.dtype
            )
        else:
            odd = ~array
        odd = odd if rng.uniform() < 0.8 else odd[:-1]
        target = changed(path, tmp_path, arrays={name: odd})
        try:
            text = document(read(target), [])
        except UserError:
            continue
        drawn += 1
        assert len(text) > 10_000
    target = changed(path, tmp_path)
    odds = ["", "x", "\ud800", 1, -1, 0.5, True, None, 10**400, 1e308, [10**400], ["\ud800"], {"x": 10**400}]
    for name in [*told, *told["settings"]]:
        for index in [8, rng.integers(len(odds))]:
            odd = (
                {"settings": told["settings"] | {name: odds[index]}}
                if name in told["settings"]
                else {name: odds[index]}
            )
            target.with_suffix(".json").write_text(json.dumps(told | odd))
            try:
                found = read(target)
            except UserError:
                continue
            drawn += 1
            page_data(found)
            json.dumps(found.facts, ensure_ascii=False).encode()
    assert drawn > 10


def test_thresholds_that_overflow_are_numbers(path, tmp_path):
    settings = read(path).facts["settings"] | {"critics": "max", "discount": 1e-30, "threshold_exponent": -40.0}
    for cost in (1.0, 0.0):
        recording = read(changed(path, tmp_path, facts={"settings": settings | {"cost": cost}}))
        assert all(np.isfinite(page_data(recording)["settings"]["cost_thresholds"]))


def test_how_far_a_shield_can_be_trusted(path, tmp_path):
    """Figures as they were measured; where that was another agent or question, it is said; where nothing was, how to."""
    bare = document(read(path), [])
    assert "ambs foresight RUN" in bare
    assert "0.3, as asked for" in bare
    settings = read(path).facts["settings"]
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


def foreign_members():
    """What a member called `labels` may be instead of an array: text, a header that claims petabytes, bytes to be damaged."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f8", "fortran_order": False, "shape": (10**15,)})
    return {"text": b"no array", "huge": header.getvalue(), "damaged": bytes(range(256)) * 40}


def run(capsys, *arguments):
    with pytest.raises(SystemExit) as stop:
        main(["inspect", *map(str, arguments)])
    return stop.value.code, capsys.readouterr()


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
        ((tmp_path, "--episode", "7"), "there is no 7"),
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
    monkeypatch.setattr(Recording, "__hash__", object.__hash__)
    monkeypatch.setattr("ambs.inspector.write.read", watched)
    assert run(capsys, tmp_path)[0] == 0
    assert run(capsys, tmp_path, "--audit", tmp_path / "audit.csv")[0] == 0
    assert len(most) == 4 + 4 + 4 + 4
    assert max(most) <= 2


def test_what_would_fill_the_memory_is_refused(path, tmp_path, monkeypatch):
    assert LARGEST <= 1 << 29
    monkeypatch.setattr("ambs.inspector.recording.LARGEST", 1000)
    with pytest.raises(UserError, match="it claims"):
        read(changed(path, tmp_path))
