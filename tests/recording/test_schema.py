"""The schema of recordings against files that were written without it, and against what the documentation tells of them."""

import json
from pathlib import Path

import numpy as np
import pytest

from ambs.recording.schema import NOT_YET, Decided, Episode, Facts, Step, known_names, stack
from tests.inspector.recordings import make_recording

UNREAD = {"observation.vector", "futures.continues", "futures.vector"}
"""Arrays that are written for other readers than ours."""
DOCS = Path(__file__).parents[2] / "docs" / "run-folder.md"


@pytest.mark.parametrize("image", [0, 8])
def test_files_come_back_as_they_are(tmp_path, image):
    path = make_recording(tmp_path, steps=20, image=image)
    told = json.loads(path.with_suffix(".json").read_text())
    facts = Facts.from_json(told, path)
    again = json.loads(json.dumps(facts.to_json()))
    assert {name: again[name] for name in told} == told
    assert Facts.from_json(again, path) == facts
    with np.load(path) as stored:
        arrays = {name: stored[name] for name in stored.files}
    episode = Episode.from_arrays("it", facts, arrays)
    found = episode.arrays()
    assert set(found) == set(arrays) - UNREAD
    for name, array in found.items():
        np.testing.assert_array_equal(array, arrays[name])
    assert episode.overrides == np.flatnonzero(arrays["overridden"]).tolist()


def test_a_recording_of_random_actions_has_no_decisions(tmp_path):
    path = make_recording(tmp_path, steps=20)
    facts = Facts.from_json(json.loads(path.with_suffix(".json").read_text()), path)
    with np.load(path) as stored:
        arrays = {name: stored[name] for name in stored.files if name != "reason"}
    episode = Episode.from_arrays("it", facts, arrays)
    assert not episode.decided
    assert episode.overrides == []
    assert episode.examination.futures is episode.examination.twin is episode.examination.truth is None


def test_steps_one_after_the_other():
    """Two steps by hand; what only one of them has, the episode does not."""
    one, two = (Step(np.array([k > 0]), np.array(k), np.array(0.5 * k)) for k in range(2))
    assert not one.taken
    assert one.frame_valid is NOT_YET
    one.picture = np.zeros((2, 2, 3), np.uint8)
    for step in (one, two):
        step.frame_valid = np.array([True, False])
        step.decided = Decided(**{name: np.array(7) for name in Decided.__annotations__})
        assert step.taken
    both = stack([one, two])
    assert both.labels.tolist() == [[False], [True]]
    assert both.action.tolist() == [0, 1]
    assert both.milliseconds.tolist() == [0.0, 0.5]
    assert both.frame_valid.shape == (2, 2)
    assert both.picture is None
    assert both.decided.reason.tolist() == [7, 7]


def test_the_documentation_tells_of_every_array():
    text = DOCS.read_text()
    told = [f"`{name}`" in text or f"`.{name.rpartition('.')[2]}`" in text for name in known_names() | UNREAD]
    assert all(told)
    assert len(told) > 40
