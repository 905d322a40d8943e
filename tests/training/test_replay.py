"""The ring against sequences whose every entry is known."""

import jax
import numpy as np
import pytest

from ambs.data import Experience
from ambs.envs.mirror import Mirror
from ambs.errors import UserError
from ambs.training.learn import mirrored
from ambs.training.replay import Replay, Use, size_of

ENVS = 3


def row(t: int) -> Experience:
    """Entries name their environment and time: 100·env + t."""
    mark = (100 * np.arange(ENVS) + t).astype(np.float32)
    return Experience(
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
    replay.use[:] = Use.LEARNING  # Held-out rows have a test of their own.
    replay._count_alike()
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
    again.chunk = 4
    again.load(count, pieces, tail)
    assert again.count == count
    slots = np.arange(max(0, count - 10), count) % 10
    for mine, theirs in zip(jax.tree.leaves(again.data), jax.tree.leaves(replay.data), strict=True):
        np.testing.assert_array_equal(mine[slots], theirs[slots])


def lossy(count: int, lost: tuple[str, ...]) -> Replay:
    """A ring of 10 rows, stored in pieces of 4 and loaded without some of them."""
    replay = filled(count)
    replay.chunk = 4
    pieces, tail = replay.pieces()
    again = Replay(row(0), ENVS * 10)
    again.chunk = 4
    again.load(count, {name: read for name, read in pieces.items() if name not in lost}, tail, lost)
    return again


def test_no_window_touches_a_hole():
    """Rows 5 … 14 are kept; without 8 … 11 windows of three begin at 5 and at 12, all of them equally likely."""
    again = lossy(15, ("rows-000000000008",))
    first, env = again.draw(np.random.default_rng(0), (1000,), 3)
    assert set(first.tolist()) == {5, 12}
    assert abs((first == 5).mean() - 0.5) < 0.07
    windows = again.windows(first, env, 3)
    np.testing.assert_array_equal(windows.reward, 100 * env[:, None] + first[:, None] + np.arange(3))
    assert set(again.draw(np.random.default_rng(0), (100,), 3, latest=4)[0].tolist()) == {12}
    assert again.can_draw(3)
    assert not again.can_draw(4)
    # The hole is stored as such, and leaves the ring with its rows.
    assert (set(again.pieces()[0]), again.lost) == ({"rows-000000000004"}, ["rows-000000000008"])
    for t in range(15, 22):
        again.add(row(t))
    assert set(again.draw(np.random.default_rng(0), (500,), 3)[0].tolist()) == set(range(12, 20))
    assert again.lost == []


def test_latest_rows_in_a_hole_leave_the_others():
    again = lossy(16, ("rows-000000000012",))
    assert set(again.draw(np.random.default_rng(0), (500,), 3, latest=3)[0].tolist()) == {6, 7, 8, 9}
    # Nothing leads across it: it counts as another episode, in which nothing was said.
    again.risk[:] = 0.5
    told = again.latest(6)
    assert told.is_first[:, 0].tolist() == [False, False, True, True, True, True]
    assert np.isnan(told.risk[:, 0]).tolist() == [False, False, True, True, True, True]


def test_memory_is_taken_as_rows_come(monkeypatch):
    """A ring for fewer rows than it may have is the same ring, however many come, and whoever loads it on the way."""
    plain, lean = filled(0, place="device"), Replay(row(0), ENVS * 10, "device", filled=ENVS * 3)
    assert (lean.slots, lean.most, lean.chunk) == (4, 10, plain.chunk)
    assert Replay(row(0), ENVS * 10, "host", filled=ENVS * 3).slots == 10  # Nothing is taken before it is written to.
    sizes, drawn = [], set()
    for number in range(14):
        for one in (plain, lean):
            one.add(row(number), np.arange(ENVS) == number % ENVS)
        sizes.append(lean.slots)
        for length in (1, 3):
            there = [one.can_draw(length) for one in (plain, lean)]
            assert there[0] == there[1]
            if not there[0]:
                continue
            draws = [one.draw(np.random.default_rng(0), (20,), length) for one in (plain, lean)]
            np.testing.assert_array_equal(*draws)
            seen = (jax.tree.leaves(one.windows(*draws[0], length)) for one in (plain, lean))
            for first, second in zip(*seen, strict=True):
                np.testing.assert_array_equal(first, second)
            np.testing.assert_array_equal(*(one.who_acted(*draws[0], length) for one in (plain, lean)))
            drawn.add(length)
        if number in (6, 12):  # Once with room left, once when rows have been overwritten.
            again = Replay(row(0), ENVS * 10, "device", filled=ENVS * 3)
            again.load(lean.count, *lean.pieces())
            lean = again
    assert sizes == [4, 4, 4, 4, 5, 7, 7, 9, 9, 10, 10, 10, 10, 10]
    assert drawn == {1, 3}


def test_a_ring_that_is_not_stored_leaves_its_newest_row():
    replay = filled(15)
    replay.stored = False
    pieces, tail = replay.pieces()
    assert not pieces
    np.testing.assert_array_equal(tail["reward"], row(14).reward[None])


def test_rows_that_are_missing_must_be_known_to_be_lost():
    _pieces, tail = filled(25).pieces()
    with pytest.raises(UserError, match="stored replay rows are missing: rows-000000000010"):
        Replay(row(0), ENVS * 10).load(25, {}, tail)


def test_foreign_rows_are_refused():
    pieces, tail = filled(5).pieces()
    tail["reward"] = tail["reward"].astype(np.float64)
    with pytest.raises(UserError, match="reward should be float32"):
        Replay(row(0), ENVS * 10).load(5, pieces, tail)


def test_memory_of_the_papers_buffer():
    """A million steps of 64 × 64 × 3 bytes and their small change fit in 13.5 GB."""
    example = row(0)._replace(observation={"image": np.zeros((ENVS, 64, 64, 3), np.uint8)})
    assert 12.288e9 < size_of(example, 1_000_000) < 13.5e9


def test_a_ring_that_no_memory_holds_is_refused():
    with pytest.raises(
        UserError,
        match=r"buffer of 9007199254740992 steps takes .* GB, and there are .* GB of host memory: lower training",
    ):
        Replay(row(0), 2**53)


@pytest.mark.parametrize("envs", [3, 8])
def test_held_out_worlds_are_never_learned_from(envs):
    """Uses are those of whole episodes or whole environments, survive storing, and windows of two uses share no row."""

    def wide(t: int) -> Experience:
        first = np.full(envs, t % 5 == 0)
        labels = np.zeros((envs, 2, 1), bool)
        blank = np.zeros((envs, 2), np.float32)
        return Experience(
            {"vector": blank}, blank, np.zeros(envs, np.float32), labels, np.ones(envs, np.float32), first
        )

    replay = Replay(wide(0), envs * 150)
    for t in range(400):
        replay.add(wide(t))
    rows = {}
    for use in Use:
        first, env = replay.draw(np.random.default_rng(0), (4000,), 4, use=use)
        latest, _ = replay.draw(np.random.default_rng(0), (400,), 4, latest=60, use=use)
        assert latest.min() >= 340
        rows[use] = {(int(a) + k, int(e)) for a, e in zip(first, env, strict=True) for k in range(4)}
        if envs == 8:
            wanted = {Use.LEARNING: range(6), Use.JUDGING: [6], Use.THRESHOLDS: [7]}[use]
            assert set(env.tolist()) == set(wanted)
            # Episodes of five rows; the one environment that is held out has 57 windows of four in 60 rows, none of them twice.
            assert replay.rows_with(8, Use.THRESHOLDS) == 40
            assert np.unique(replay.draw(np.random.default_rng(0), (57,), 4, 60, Use.THRESHOLDS)[0]).size == 57
        else:
            episodes = {(row // 5, env) for row, env in rows[use]}
            assert all(replay.use[(5 * number) % 150, env] == use for number, env in episodes if 5 * number >= 250)
    assert not rows[Use.LEARNING] & (rows[Use.JUDGING] | rows[Use.THRESHOLDS])
    assert not rows[Use.JUDGING] & rows[Use.THRESHOLDS]
    shares = np.bincount(replay.use.ravel(), minlength=3) / replay.use.size
    assert (shares[1:] > 0.05).all()
    again = Replay(wide(0), envs * 150)
    again.load(400, *replay.pieces())
    np.testing.assert_array_equal(again.use, replay.use)
    for t in range(400, 420):
        replay.add(wide(t))
        again.add(wide(t))
    np.testing.assert_array_equal(again.use, replay.use)
    first, env = again.draw(np.random.default_rng(1), (500,), 6)
    np.testing.assert_array_equal(np.stack([first, env]), replay.draw(np.random.default_rng(1), (500,), 6))


def test_mirrored_sequences_by_hand():
    """Pictures are reversed along their width, actions and vectors as the world says; mirrored twice, nothing has changed."""
    mirror = Mirror((0, 1), (1.0, -1.0), (1, 0, 2), (1.0, 1.0, -1.0))
    image = np.arange(2 * 2 * 1 * 3, dtype=np.uint8).reshape(1, 1, 2, 2, 3)
    vector, action = np.array([[[1.0, 2.0, 3.0]]], np.float32), np.array([[[0.5, 0.25]]], np.float32)
    rest = (
        np.ones((1, 1), np.float32),
        np.ones((1, 1, 2, 1), bool),
        np.ones((1, 1), np.float32),
        np.ones((1, 1), bool),
    )
    batch = Experience({"image": image, "vector": vector}, action, *rest)
    other = mirrored(batch, mirror)
    assert other.observation["image"][0, 0, 0].tolist() == [[3, 4, 5], [0, 1, 2]]
    assert other.observation["vector"].tolist() == [[[2.0, 1.0, -3.0]]]
    assert other.action.tolist() == [[[0.5, -0.25]]]
    again = mirrored(other, mirror)
    assert all(np.array_equal(a, b) for a, b in zip(jax.tree.leaves(again), jax.tree.leaves(batch), strict=True))


def untold(rows):
    return {name: part for name, part in rows.items() if name not in ("backup", "risk")}


@pytest.mark.parametrize("place", ["host", "device"])
def test_who_acted_and_what_the_shield_said_is_remembered_and_stored(place):
    """The backup policy led environment 1 to row 4, which windows of three that begin at rows 2, 3 and 4 have; in rows 3 to 7
    the shield said a risk of that many tenths."""
    replay = Replay(row(0), 20, place)
    for t in range(8):
        replay.add(row(t), np.arange(replay.envs) == (1 if t == 4 else -1))
        if t >= 3:
            replay.decided(np.full(replay.envs, t / 10))
    first = np.arange(1, 6)
    expected = [[False, False, False], [False, False, True], [False, True, False], [True, False, False], [False] * 3]
    again = Replay(row(0), 20, place)
    pieces, tail = replay.pieces()
    again.load(replay.count, pieces, tail, ())
    for one in (replay, again):
        assert one.who_acted(first, np.full(5, 1), 3).tolist() == expected
        assert not one.who_acted(first, np.full(5, 0), 3).any()
        told = one.latest(6)
        np.testing.assert_allclose(told.risk[:, 0], [np.nan, 0.3, 0.4, 0.5, 0.6, 0.7], rtol=1e-6)
        assert told.backup[:, 1].tolist() == [False, False, True, False, False, False]
        np.testing.assert_array_equal(told.labels, [row(t).labels for t in range(2, 8)])
    # Rows of an earlier version do not tell.
    older = {name: lambda read=read: untold(read()) for name, read in pieces.items()}
    again.load(replay.count, older, untold(tail), ())
    assert not again.who_acted(first, np.full(5, 1), 3).any()
    assert np.isnan(again.latest(8).risk).all()
