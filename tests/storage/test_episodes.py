"""Logged episodes, made by hand: read back as they were, and refused in a sentence where they are not what the table says."""

import zipfile

import numpy as np
import pytest

from ambs.errors import UserError
from ambs.storage.episodes import Episode, read_episode, read_episodes, write_episode


def by_hand(**changes):
    """Two steps of a world of three numbers, as somebody else's program would save them; None: left out."""
    arrays = {
        "observation": np.array([[0.0, 1, 2], [1, 1, 2], [2, 1, 2]]),
        "action": np.array([[0.5, -1.0], [0.0, 1.0]]),
        "labels": np.array([[False], [False], [True]]),
        "atoms": np.array(["hazard"]),
        "terminated": np.array(False),
        "truncated": np.array(True),
    } | changes
    return {name: value for name, value in arrays.items() if value is not None}


def saved(folder, name="one.npz", **changes):
    np.savez(folder / name, **by_hand(**changes))
    return folder / name


def test_what_others_have_saved_is_read(tmp_path):
    episode = read_episode(saved(tmp_path))
    assert episode.steps == 2
    assert episode.observation[""].tolist() == [[0, 1, 2], [1, 1, 2], [2, 1, 2]]
    assert episode.wanted.tolist() == [[0.5, -1], [0, 1]]
    assert episode.labels.tolist() == [[False], [False], [True]]
    assert (episode.atoms, episode.terminated, episode.truncated) == (("hazard",), False, True)
    assert (episode.reward, episode.action_bounds, episode.env) == (None, None, "")
    choices = read_episode(saved(tmp_path, action=np.array([0, 3]), proposed=np.array([-1, 2]), actions=np.array(4)))
    assert choices.discrete
    assert (choices.actions, choices.wanted.tolist()) == (4, [-1, 2])


def test_everything_is_written_and_read_back(tmp_path):
    parts = {
        "vision": np.arange(3 * 4 * 4 * 3, dtype=np.uint8).reshape(3, 4, 4, 3),
        "vector": np.ones((3, 2), np.float32),
    }
    wrote = Episode(
        parts, np.array([[3.0], [-4.0]], np.float32), np.zeros((3, 2), bool), ("a", "b"), True, False,
        np.array([[np.nan], [5.0]], np.float32), np.array([1.0, -1.0]), None,
        (np.array([-4.0]), np.array([5.0])), (np.array([-1.0, -np.inf]), np.array([1.0, np.inf])), "mine:make", "p:q", "!a",
    )  # fmt: skip
    write_episode(tmp_path / "episode.npz", wrote)
    read = read_episode(tmp_path / "episode.npz")
    for name in Episode._fields:
        np.testing.assert_equal(getattr(read, name), getattr(wrote, name), err_msg=name)
    assert [path.name for path in tmp_path.iterdir()] == ["episode.npz"]
    with pytest.raises(UserError, match="action lies beyond −1 and 1"):
        write_episode(tmp_path / "other.npz", wrote._replace(action_bounds=None))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"labels": None}, "the array 'labels' is missing"),
        ({"lables": np.zeros(3)}, "there is no array 'lables'"),
        ({"format": np.array(9)}, "its format is 9"),
        ({"observation": None}, "must have an array observation"),
        ({"observation": np.zeros((2, 3))}, r"observation must be numbers .* T \+ 1 = 3, got float64 \[2, 3\]"),
        ({"observation": np.full((3, 3), np.nan)}, "not all entries of observation are finite"),
        ({"observation": np.zeros((3, 4, 4, 3))}, "pictures uint8"),
        ({"action": np.zeros((2, 2), bool)}, "real numbers"),
        ({"action": np.zeros((0, 2)), "labels": np.zeros((1, 1), bool)}, "no step in it"),
        ({"action": np.full((2, 2), np.inf)}, "not all entries of action"),
        ({"action": np.full((2, 2), 1.5)}, "action lies beyond −1 and 1, for want of"),
        ({"action_low": -np.ones(2)}, "go together"),
        ({"action_low": -np.ones(3), "action_high": np.ones(3)}, "must be 2 numbers each"),
        ({"action_low": np.ones(2), "action_high": -np.ones(2)}, "nowhere exceed"),
        ({"action_low": -np.ones(2) / 4, "action_high": np.ones(2)}, "action lies beyond action_low"),
        ({"proposed": np.zeros((2, 3))}, "proposed must be like action"),
        ({"proposed": np.full((2, 2), 3.0)}, "proposed lies beyond"),
        ({"action": np.array([0, 4]), "actions": np.array(4)}, "action must lie from 0 to 3, got 0 to 4"),
        ({"action": np.array([0, 1]), "proposed": np.array([0, -2])}, "proposed must lie from -1, got -2 to 0"),
        ({"labels": np.zeros((3, 1))}, r"labels must be truth values \[T \+ 1, atoms\] = \[3, 1\], got float64"),
        ({"atoms": np.array(["a", "a"]), "labels": np.zeros((3, 2), bool)}, "different names"),
        ({"terminated": np.array([False, True])}, "terminated must be a single true or false"),
        ({"terminated": np.array(True)}, "cannot both be true"),
        ({"reward": np.zeros(3)}, "reward must be 2 finite numbers"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_of_the_file(tmp_path, changes, sentence):
    with pytest.raises(UserError, match=f"one.npz.*{sentence}"):
        read_episode(saved(tmp_path, **changes))


def test_files_that_are_none(tmp_path):
    damaged = saved(tmp_path)
    data = bytearray(damaged.read_bytes())
    data[len(data) // 3] ^= 0xFF
    damaged.write_bytes(bytes(data))
    (tmp_path / "text.npz").write_text("episode")
    (tmp_path / "empty.npz").write_bytes(b"")
    np.savez(tmp_path / "objects.npz", **by_hand(atoms=np.array([{}], object)), allow_pickle=True)
    np.save(tmp_path / "single.npy", np.zeros(3))
    with zipfile.ZipFile(tmp_path / "zip.npz", "w") as archive:
        archive.writestr("readme.txt", "nothing")
    (tmp_path / "folder.npz").mkdir()
    for name in ("one.npz", "text.npz", "empty.npz", "objects.npz", "single.npy", "zip.npz", "folder.npz", "gone.npz"):
        with pytest.raises(UserError, match=name):
            read_episode(tmp_path / name)
    with pytest.raises(UserError, match="pickles"):
        read_episode(tmp_path / "objects.npz")


def test_files_of_different_worlds_do_not_go_together(tmp_path):
    first, same = saved(tmp_path), saved(tmp_path, "two.npz", reward=np.zeros(2))
    assert [episode.steps for episode in read_episodes([first, same])] == [2, 2]
    other = saved(tmp_path, "three.npz", atoms=np.array(["wall"]))
    with pytest.raises(UserError, match=r"three.npz is of another world .* atoms are \['wall'\], not \['hazard'\]"):
        list(read_episodes([first, other]))
    wider = saved(tmp_path, "four.npz", observation=np.zeros((3, 4)))
    with pytest.raises(UserError, match="its observations are"):
        list(read_episodes([first, wider]))
