"""Recordings that are damaged, foreign or made up: drawn or refused in a sentence, never a traceback."""

import io
import json
import zipfile

import numpy as np
import pytest

from ambs.errors import UserError
from ambs.inspector.data import page_data
from ambs.inspector.document import document
from ambs.inspector.recording import LARGEST, read
from tests.inspector.recordings import SAFETY, SETTINGS, TRUST, changed, make_recording

SHIELD = vars(SETTINGS["sequential"]) | vars(SAFETY)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return make_recording(tmp_path_factory.mktemp("one"))


def refused(target, match):
    with pytest.raises(UserError, match=match) as caught:
        read(target)
    assert "\n" not in str(caught.value)


def test_files_that_are_cut_short_or_overwritten(path, tmp_path):
    target = changed(path, tmp_path)
    whole = target.read_bytes()
    assert read(target).facts.steps == 80
    for length in (0, 100, len(whole) // 2, len(whole) - 10):
        target.write_bytes(whole[:length])
        refused(target, "is not a whole recording")
    target.write_bytes(whole[:5000] + bytes(200) + whole[5200:])
    refused(target, "is not a whole recording|must be|lacks")
    with zipfile.ZipFile(target, "w") as archive:
        archive.writestr("words.txt", "nothing")
    refused(target, "lacks the array")


@pytest.mark.parametrize(
    ("arrays", "match"),
    [
        ({"reason": np.array([{}], object)}, "is not a whole recording"),
        ({"p_safe": np.zeros(79, np.float32)}, r"p_safe must be numbers of shape \(80\), got float32 of shape \(79,\)"),
        ({"futures.shown": np.ones((10, 2, 5), int)}, r"futures.shown must be whole numbers of shape \(10, 3, P\)"),
        ({"twin.step": np.full(10, 80)}, "points beyond the 80 steps"),
        *(
            ({"truth.safe": np.full(10, safe), "truth.futures": np.full(10, futures)}, "truth.safe must count some of")
            for safe, futures in ((0, 0), (-1, 50), (51, 50))
        ),
        ({"picture": np.zeros((80, 1, 70_000, 3), np.uint8)}, "pictures of picture are too large, 1 × 70000"),
        ({"twin.image": np.zeros((10, 3, 1, 30_000, 3), np.uint8)}, "pictures of twin.image are too large, 1 × 30000"),
        *(
            ({name: np.zeros((80, 2, 2))}, rf"{name} must be numbers of shape \(80, \?\), got float64 of shape \(80, 2, 2\)")
            for name in ("action", "proposed")
        ),
    ],
)  # fmt: skip
def test_arrays_that_are_not_what_they_should_be(path, tmp_path, arrays, match):
    refused(changed(path, tmp_path, arrays=arrays), match)


def test_an_array_that_is_missing(path, tmp_path):
    refused(changed(path, tmp_path, without=("frame_violations",)), "lacks the array frame_violations")


@pytest.mark.parametrize(
    ("told", "match"),
    [
        ({"format": 1}, "an older version"), ({"format": "x" * 500}, "another version"), ({"steps": True}, "steps must be"),
        ({"settings": SHIELD | {"chunk": None}}, "chunk must be"), ({"atoms": [1]}, "atoms must be"),
        ({"settings": SHIELD | {"traces": 10**6, "chunk": 1}}, "can be shown, got 1000000 in chunks of 1"),
        ({"settings": SHIELD | {"chunk": 1, "traces": 501}}, "500 chunks"), ({"steps": 10**400}, "steps must be"),
        ({"settings": SHIELD | {"failure_probability": 1e-200}}, "failure_probability must be a probability"),
        ({"settings": SHIELD | {"cost": 10**400}}, "cost must be"), ({"thresholds": [10**400]}, "thresholds must"),
        ({"foresight": TRUST | {"auroc": {"mean": "<b>"}}}, "foresight is not what"), ({"foresight": 1}, "foresight must be"),
        ({"checkpoint": "x"}, "checkpoint must be"), ({"settings": SHIELD | {"asked": 2}}, "asked must be a probability"),
        ({"settings": []}, "does not describe"), ({"thresholds": 1}, "thresholds must"), ({"reasons": [1]}, "reasons must be"),
        ({"shield": None}, "shield must be true or false"), ({"shield": "on"}, "shield must be true or false"),
    ],
)  # fmt: skip
def test_facts_that_cannot_be(path, tmp_path, told, match):
    refused(changed(path, tmp_path, facts=told), match)


def foreign_members():
    """What a member called `labels` may be instead of an array: text, a header that claims petabytes, bytes to be damaged."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f8", "fortran_order": False, "shape": (10**15,)})
    return {"text": b"no array", "huge": header.getvalue(), "damaged": bytes(range(256)) * 40}


@pytest.mark.parametrize("member", foreign_members())
def test_a_member_that_is_no_array(path, tmp_path, member):
    target = changed(path, tmp_path)
    with zipfile.ZipFile(target, "w", zipfile.ZIP_LZMA if member == "damaged" else zipfile.ZIP_STORED) as archive:
        archive.writestr("labels" if member == "text" else "labels.npy", foreign_members()[member])
    if member == "damaged":
        whole = target.read_bytes()
        target.write_bytes(whole.replace(whole[60:80], bytes(20), 1))
    refused(target, "is not a whole recording")


def test_facts_that_cannot_be_read(path, tmp_path):
    target = changed(path, tmp_path)
    facts = target.with_suffix(".json")
    for text in ("[" * 100_000, '{"format": 2'):
        facts.write_text(text)
        refused(target, "cannot be read")
    facts.unlink()
    refused(target, "is missing")


def test_whatever_is_in_a_file_it_is_drawn_or_refused(path, tmp_path):
    """Numbers turned into others of the same kind, and arrays cut short: a page, or a sentence, never a traceback."""
    rng = np.random.default_rng(0)
    whole = read(path)
    told = json.loads(path.with_suffix(".json").read_text())
    drawn = 0
    for name, array in whole.arrays().items():
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
            json.dumps(found.facts.to_json(), ensure_ascii=False).encode()
    assert drawn > 10


def test_what_would_fill_the_memory_is_refused(path, tmp_path, monkeypatch):
    assert LARGEST <= 1 << 29
    monkeypatch.setattr("ambs.inspector.recording.LARGEST", 1000)
    with pytest.raises(UserError, match="it claims"):
        read(changed(path, tmp_path))
