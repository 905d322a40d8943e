"""The ring against sequences whose every entry is known."""

import jax
import numpy as np
import pytest

from ambs.errors import UserError
from ambs.replay import Replay, size_of
from ambs.world_model.loss import Sequence

ENVS = 3


def row(t: int) -> Sequence:
    """Entries name their environment and time: 100·env + t."""
    mark = (100 * np.arange(ENVS) + t).astype(np.float32)
    return Sequence(
        {"vector": np.stack([mark, -mark], axis=-1)},
        np.tile(mark[:, None], (1, 2)),
        mark,
        np.zeros((ENVS, 2, 1), bool),
        np.ones(ENVS, np.float32),
        np.full(ENVS, t % 4 == 0),
    )


def filled(count: int, capacity: int = ENVS * 10, place: str = "host") -> Replay:
    replay = Replay(row(0), capacity, place)
    for t in range(count):
        replay.add(row(t))
    return replay


@pytest.mark.parametrize("place", ["host", "device"])
def test_windows_are_consecutive_rows_of_one_environment(place):
    replay = filled(25, place=place)
    first, env = replay.draw(np.random.default_rng(0), (2, 50), 4)
    windows = jax.tree.map(np.asarray, replay.windows(first, env, 4))
    assert windows.reward.shape == (2, 50, 4)
    expected = 100 * env[..., None] + first[..., None] + np.arange(4)
    np.testing.assert_array_equal(windows.reward, expected)
    np.testing.assert_array_equal(windows.observation["vector"][..., 1], -expected)
    starts = (first[..., None] + np.arange(4)) % 4 == 0
    starts[..., 0] = True
    np.testing.assert_array_equal(windows.is_first, starts)


def test_every_valid_window_is_as_likely_and_no_other_is_drawn():
    replay = filled(25)
    first, env = replay.draw(np.random.default_rng(0), (70_000,), 4)
    # The ring of 10 holds rows 15 … 24; windows of 4 begin at 15 … 21.
    pairs, counts = np.unique(np.stack([first, env]), axis=1, return_counts=True)
    assert pairs.shape[1] == 7 * ENVS
    assert (pairs[0].min(), pairs[0].max()) == (15, 21)
    expected = 70_000 / (7 * ENVS)
    assert ((counts - expected) ** 2 / expected).sum() < 45  # χ² with 20 degrees of freedom: P < .002


def test_the_latest_rows_alone():
    first, _ = filled(9).draw(np.random.default_rng(0), (500,), 2, latest=4)
    assert set(first.tolist()) == {5, 6, 7}


def test_too_short_is_said():
    with pytest.raises(UserError, match="holds 3 steps of each environment, a window needs 4"):
        filled(3).draw(np.random.default_rng(0), (1,), 4)


@pytest.mark.parametrize("count", [3, 9, 10, 37])
def test_pieces_restore_the_ring(count):
    replay = filled(count)
    replay.chunk = 4
    pieces, tail = replay.pieces()
    assert all(int(name.removeprefix("rows-")) % 4 == 0 for name in pieces)
    again = Replay(row(0), ENVS * 10)
    again.load(count, pieces, tail)
    assert again.count == count
    slots = np.arange(max(0, count - 10), count) % 10
    for mine, theirs in zip(jax.tree.leaves(again.data), jax.tree.leaves(replay.data), strict=True):
        np.testing.assert_array_equal(mine[slots], theirs[slots])


def test_foreign_rows_are_refused():
    pieces, tail = filled(5).pieces()
    tail["reward"] = tail["reward"].astype(np.float64)
    with pytest.raises(UserError, match="reward should be float32"):
        Replay(row(0), ENVS * 10).load(5, pieces, tail)


def test_memory_of_the_papers_buffer():
    """A million steps of 64 × 64 × 3 bytes and their small change fit in 13.5 GB."""
    example = row(0)._replace(observation={"image": np.zeros((ENVS, 64, 64, 3), np.uint8)})
    assert 12.288e9 < size_of(example, 1_000_000) < 13.5e9
