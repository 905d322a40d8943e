"""Replay: the latest steps of every environment, and batches of windows drawn uniformly from them.

Rows go into a ring of `slots` × environments. A window is a run of consecutive rows of one environment; it may cross the end
of an episode, where `is_first` says so, and never a hole: rows that a damaged file took with it. The ring lies in host memory
or on the accelerator; the same numbers choose the same windows in both.

Some worlds are held out (`Use`): what is judged on them was never learned from. With eight environments or more they are the
worlds of whole environments, else whole episodes; a window has one use only.
"""

import enum
import functools
import math
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ambs.data import Experience
from ambs.errors import UserError

_HELD_OUT = 0x0DD5
CHUNK = 1024
"""Rows per environment in one stored piece."""
SPARE = 64
"""One row in so many more than a run's frames fill: the beginning of an episode has no frame, and its last step may have few."""


class Told(NamedTuple):
    """Of consecutive rows `[rows, envs]`: whether an episode begins there, its labels, what it is for, whether the backup policy
    led to it, and what the shield said there."""

    is_first: np.ndarray
    labels: np.ndarray
    use: np.ndarray
    backup: np.ndarray
    risk: np.ndarray


class Use(enum.IntEnum):
    """What a row is for."""

    LEARNING = 0
    THRESHOLDS = 1
    """Held out: where the shield's thresholds are set."""
    JUDGING = 2
    """Held out: where labels and foresight are judged."""


MANY = 8
"""Environments from which on whole ones are held out: the last one and the one before; with fewer, one episode in so many, by
lot."""


class Replay:
    """The ring. `count` rows have been added per environment since the start; the last `slots` of them are kept."""

    def __init__(
        self,
        example: Experience,
        capacity: int,
        place: Literal["host", "device"] = "host",
        *,
        runs: int = 1,
        filled: int | None = None,
        stored: bool = True,
    ) -> None:
        """`example`: one row `[envs, …]` as NumPy arrays; `capacity`: steps of all environments together; `runs`: how many runs
        keep such a ring in the same place; `filled`: about how many steps there will be, if that is known: of an accelerator's
        memory no more is taken before they come, of the host's none before it is written to; `stored`: whether checkpoints hold
        it, or its newest row alone."""
        self.stored = stored
        self.envs = example.reward.shape[0]
        self.most = capacity // self.envs
        self.chunk = min(CHUNK, self.most)
        used = needed(capacity, filled, self.envs)
        self.slots = self.most if place == "host" else used // self.envs
        """Rows per environment that there is memory for; all of `most` before any is overwritten."""
        self.place = place
        self.count = 0
        self.holes: list[tuple[int, int]] = []
        """First row and the row after the last (counted from the start of the run) of pieces that were lost."""
        _check_room(size_of(example, used), used, place, runs)
        xp: Any = np if place == "host" else jnp
        self.use = np.zeros((self.slots, self.envs), np.int8)
        """`Use` of every row."""
        self.backup = np.zeros((self.slots, self.envs), bool)
        """Whether the shield had the backup policy act on the way to a row."""
        self.risk = np.full((self.slots, self.envs), np.nan, np.float32)
        """What the shield said in a row of what was proposed there, 1 − p̃; NaN where it was not asked."""
        self.alike = np.zeros((self.slots, self.envs), np.int32)
        """Rows up to this one, it included, that follow one another and have its use."""
        self._seen: dict[tuple[int, Use], int] = {}
        """First row of the newest window of this length and use that was found when somebody last looked."""
        self._none_before: dict[tuple[int, Use], int] = {}
        """Rows that must have been added before it is worth while to look again for what was not found."""
        self.data: Experience = jax.tree.map(lambda leaf: xp.zeros((self.slots, *leaf.shape), leaf.dtype), example)
        if place == "device":
            self._put = jax.jit(_put, donate_argnums=0)
            self._take = jax.jit(_take, static_argnums=3)

    @property
    def nbytes(self) -> int:
        """Memory of a full ring, bytes."""
        return sum(leaf.nbytes for leaf in jax.tree.leaves(self.data))

    @property
    def kept(self) -> int:
        """Rows per environment that can be drawn."""
        return min(self.count, self.slots)

    def add(self, row: Experience, backup: np.ndarray | None = None) -> None:
        """Append one row `[envs, …]`; `backup` bool `[envs]`: where the backup policy led to it."""
        if self.count == self.slots < self.most:
            self._grow(self.slots + -(-self.slots // 4))
        slot = self.count % self.slots
        self.backup[slot] = False if backup is None else backup
        self.risk[slot] = np.nan
        self._assign(slot, np.asarray(row.is_first))
        if self.place == "device":
            self.data = self._put(self.data, row, slot)
        else:
            jax.tree.map(lambda ring, new: ring.__setitem__(slot, new), self.data, row)
        self.count += 1

    def _grow(self, slots: int) -> None:
        """Take memory for so many rows, as far as they are allowed; none has been overwritten yet."""
        more = min(slots, self.most) - self.slots

        def longer(leaf: Any, xp: Any = jnp) -> Any:
            return xp.concatenate([leaf, xp.zeros((more, *leaf.shape[1:]), leaf.dtype)])

        self.use, self.backup, self.alike = (longer(leaf, np) for leaf in (self.use, self.backup, self.alike))
        self.risk = np.concatenate([self.risk, np.full((more, self.envs), np.nan, np.float32)])
        self.data = jax.tree.map(longer, self.data)
        self.slots += more

    def _assign(self, slot: int, is_first: np.ndarray) -> None:
        """Decide what the row that goes into this slot is for: what its episode is for."""
        if self.envs >= MANY:
            lot = self.envs - 1 - np.arange(self.envs)
        else:
            lot = np.random.default_rng([_HELD_OUT, self.count]).integers(0, MANY, self.envs)
        fresh = np.where(lot == 0, Use.THRESHOLDS, np.where(lot == 1, Use.JUDGING, Use.LEARNING)).astype(np.int8)
        before = slot - 1 if self.count else slot
        use = np.where(is_first | (self.count == 0), fresh, self.use[before])
        self.alike[slot] = np.where((use == self.use[before]) & (self.count > 0), self.alike[before] + 1, 1)
        self.use[slot] = use

    def draw(
        self,
        rng: np.random.Generator,
        shape: tuple[int, ...],
        length: int,
        latest: int | None = None,
        use: Use = Use.LEARNING,
    ) -> tuple[np.ndarray, np.ndarray]:
        """First rows (counted from the start of the run) and environments of windows, uniform over all valid ones of this use.

        With `latest` only windows from the last so many rows are drawn, if there are any; none twice, if there are enough.
        """
        if not self.can_draw(length, use):
            kind = "" if use == Use.LEARNING else " of worlds that are held out"
            raise UserError(
                f"the replay buffer holds {self.kept} steps of each environment, a window{kind} needs {length}"
            )
        if latest is not None:
            rows, envs = self._windows(length, use, max(latest, length))
            if not rows.size:
                rows, envs = self._windows(length, use, self.kept)
            chosen = rng.choice(rows.size, shape, replace=rows.size < math.prod(shape))
            return rows[chosen], envs[chosen]
        first, env = self._draw_any(rng, shape, length)
        while (wrong := ~self._fits(first, env, length, use)).any():
            first[wrong], env[wrong] = self._draw_any(rng, (int(wrong.sum()),), length)
        return first, env

    def can_draw(self, length: int, use: Use = Use.LEARNING) -> bool:
        """Whether there is any window of this length and use."""
        known = self._seen.get((length, use), -1)
        if known < 0 and self.count < self._none_before.get((length, use), 0):
            return False
        if not self.count - self.kept <= known or any(
            start < known + length and known < stop for start, stop in self.holes
        ):
            rows, _ = self._windows(length, use, self.kept)
            known = self._seen[length, use] = int(rows.max(initial=-1))
            self._none_before[length, use] = self.count + length // 4
        return known >= 0

    def who_acted(self, first: np.ndarray, env: np.ndarray, length: int) -> np.ndarray:
        """Whether the backup policy led to each row of these windows, bool `[windows, length]`."""
        return self.backup[(first[:, None] + np.arange(length)) % self.slots, env[:, None]]

    def decided(self, risk: np.ndarray) -> None:
        """Note what the shield said of what was proposed in the newest row, 1 − p̃ `[envs]`; NaN where it was not asked."""
        self.risk[(self.count - 1) % self.slots] = risk

    def latest(self, rows: int) -> "Told":
        """What is known of the last so many rows, the oldest first. In those that were lost nothing was said, and each begins an
        episode, so that nothing leads across them."""
        rows = min(rows, self.kept)
        slots = np.arange(self.count - rows, self.count) % self.slots
        first, labels = (np.array(np.asarray(leaf)[slots]) for leaf in (self.data.is_first, self.data.labels))
        told = Told(first, labels, self.use[slots], self.backup[slots], self.risk[slots])
        for start, stop in self.holes:
            gone = slice(max(start - self.count + rows, 0), max(stop - self.count + rows, 0))
            told.is_first[gone], told.risk[gone] = True, np.nan
        return told

    def rows_with(self, episodes: int, use: Use) -> int:
        """Of how many of the latest rows one must take to have the beginnings of so many episodes of this use; all, if there are
        fewer."""
        slots = np.arange(self.count - self.kept, self.count)[::-1] % self.slots
        begun = (np.asarray(self.data.is_first)[slots] & (self.use[slots] == use)).sum(axis=1).cumsum()
        return min(int(np.searchsorted(begun, episodes)) + 1, self.kept)

    def _draw_any(self, rng: np.random.Generator, shape: tuple[int, ...], length: int) -> tuple[np.ndarray, np.ndarray]:
        """First rows and environments of windows of whatever use."""
        runs = self._runs(self.kept, length)
        ends = np.cumsum(runs[:, 1])
        number = rng.integers(0, ends[-1], shape)
        run = np.searchsorted(ends, number, side="right")
        first = runs[run, 0] + number - (ends - runs[:, 1])[run]
        return first, rng.integers(0, self.envs, shape)

    def _fits(self, first: np.ndarray, env: Any, length: int, use: Use) -> np.ndarray:
        """Whether all rows of these windows have this use."""
        last = (first + length - 1) % self.slots
        return (self.use[last, env] == use) & (self.alike[last, env] >= length)

    def _windows(self, length: int, use: Use, latest: int) -> tuple[np.ndarray, np.ndarray]:
        """First rows and environments of all windows of this use within the last so many rows."""
        runs = self._runs(min(self.kept, latest), length)
        first = np.concatenate([np.arange(begin, begin + count) for begin, count in runs] or [np.zeros(0, np.int64)])
        row, env = np.nonzero(self._fits(first[:, None], np.arange(self.envs)[None], length, use))
        return first[row], env

    def _runs(self, rows: int, length: int) -> np.ndarray:
        """Where windows within the last `rows` rows may begin, holes left out: `[runs, 2]`, first row and number of them."""
        runs, begin = [], self.count - rows
        for start, stop in [*self.holes, (self.count, self.count)]:
            if start - length >= begin:
                runs.append((begin, start - length - begin + 1))
            begin = max(begin, stop)
        return np.array(runs, np.int64).reshape(-1, 2)

    def windows(self, first: np.ndarray, env: np.ndarray, length: int) -> Experience:
        """The windows `[*shape, length, …]`; each begins as if it were an episode's first step."""
        if self.place == "device":
            return self._take(self.data, (first % self.slots).astype(np.int32), env.astype(np.int32), length)
        return _take(self.data, first % self.slots, env, length)

    def pieces(self) -> tuple[Mapping[str, Callable[[], dict[str, np.ndarray]]], dict[str, np.ndarray]]:
        """What a checkpoint stores: full pieces, which never change, by name; and the rows after the last of them."""
        if not self.stored:
            return {}, self._rows(max(0, self.count - 1), self.count)
        made = {
            _name(start): functools.partial(self._rows, start, start + self.chunk)
            for start in self._full(self.count)
            if (start, start + self.chunk) not in self.holes
        }
        return made, self._rows(max(self.count // self.chunk * self.chunk, self.count - self.kept), self.count)

    @property
    def lost(self) -> list[str]:
        """Names of the pieces that would be stored, had their rows not been lost."""
        return [_name(start) for start in self._full(self.count) if (start, start + self.chunk) in self.holes]

    def _full(self, count: int) -> range:
        """First rows of the full pieces of a ring to which so many rows were added."""
        oldest = count - min(count, self.slots)
        return range(oldest // self.chunk * self.chunk, count // self.chunk * self.chunk, self.chunk)

    def load(
        self,
        count: int,
        pieces: Mapping[str, Callable[[], dict[str, np.ndarray]]],
        tail: dict[str, np.ndarray],
        lost: Iterable[str] = (),
    ) -> None:
        """Fill the ring from what `pieces` returned, save the pieces called `lost`, which are no longer there."""
        if self.slots < min(count, self.most):
            self._grow(count)
        ring, gone = jax.tree.map(np.array, self.data), set(lost)
        for start in self._full(count):
            if (name := _name(start)) in pieces:
                self._store(ring, start, pieces[name](), count)
            elif name not in gone:
                raise UserError(f"stored replay rows are missing: {name}")
        rows = next(iter(tail.values())).shape[0]
        self._store(ring, count - rows, tail, count)
        self.data = ring if self.place == "host" else jax.tree.map(jnp.asarray, ring)
        self.count, self._seen, self._none_before = count, {}, {}
        self._count_alike()
        self.holes = [(start, start + self.chunk) for start in self._full(count) if _name(start) in gone]

    def _count_alike(self) -> None:
        rows = np.arange(self.count - self.kept, self.count)
        use = self.use[rows % self.slots]
        begins = np.ones(use.shape, bool)
        begins[1:] = use[1:] != use[:-1]
        since = np.maximum.accumulate(np.where(begins, np.arange(self.kept)[:, None], 0), axis=0)
        self.alike[rows % self.slots] = np.arange(self.kept)[:, None] - since + 1

    def _rows(self, start: int, stop: int) -> dict[str, np.ndarray]:
        slots = np.arange(start, stop) % self.slots
        return {name: np.asarray(leaf[slots]) for name, leaf in {**_named(self.data), **self._beside()}.items()}

    def _beside(self) -> dict[str, np.ndarray]:
        """What is known of rows beside what was experienced."""
        return {"use": self.use, "backup": self.backup, "risk": self.risk}

    def _store(self, ring: Experience, start: int, rows: dict[str, np.ndarray], count: int) -> None:
        # Stored before worlds were held out, all of it was learned from; before it was told who acted and what the shield said,
        # the task policy did, and it said nothing.
        blank = {
            name: np.zeros((rows["reward"].shape[0], self.envs), leaf.dtype) for name, leaf in self._beside().items()
        }
        rows = blank | {"risk": np.full_like(blank["risk"], np.nan)} | rows
        for name, leaf in {**_named(ring), **self._beside()}.items():
            if name not in rows or rows[name].shape[1:] != leaf.shape[1:] or rows[name].dtype != leaf.dtype:
                raise UserError(f"stored replay rows do not fit: {name} should be {leaf.dtype}{list(leaf.shape[1:])}")
            times = np.arange(start, start + rows[name].shape[0])
            # Rows that the ring had already overwritten when they were stored are not part of it.
            valid = times >= count - min(count, self.slots)
            leaf[times[valid] % self.slots] = rows[name][valid]


def _name(start: int) -> str:
    """Of the piece that begins with this row."""
    return f"rows-{start:012d}"


def needed(capacity: int, filled: int | None, envs: int) -> int:
    """Of so many steps of capacity, those that are used where about so many will be `filled`."""
    if filled is None:
        return capacity
    rows = -(-filled // envs)
    return min(capacity, (rows + max(1, rows // SPARE)) * envs)


def choose_place(wanted: str, example: Experience, capacity: int) -> Literal["host", "device"]:
    """`auto`: on an accelerator whose free memory is at least twice what the ring takes, else in host memory."""
    if wanted != "auto":
        return "device" if wanted == "device" else "host"
    device = jax.devices()[0]
    if device.platform == "cpu":
        return "host"
    stats = device.memory_stats() or {}
    free = stats.get("bytes_limit", 0) - stats.get("bytes_in_use", 0)
    return "device" if 2 * size_of(example, capacity) <= free else "host"


def _check_room(needed: int, capacity: int, place: str, runs: int) -> None:
    """Refuse a ring that could never be filled, or one of several that could not all be, before it is asked for."""
    if place == "host":
        room = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    else:
        room = (jax.devices()[0].memory_stats() or {}).get("bytes_limit", runs * needed)
    if runs * needed > room:
        each = f" for each of {runs} seeds" if runs > 1 else ""
        raise UserError(
            f"a replay buffer of {capacity} steps takes {needed / 1e9:.1f} GB{each}, and there are {room / 1e9:.1f} GB of "
            f"{place} memory: lower training.capacity"
        )


def size_of(example: Experience, capacity: int) -> int:
    """Bytes of a ring for rows like this one `[envs, …]`."""
    envs = example.reward.shape[0]
    return sum(leaf.nbytes for leaf in jax.tree.leaves(example)) * (capacity // envs)


def _put(data: Experience, row: Experience, slot: Any) -> Experience:
    return jax.tree.map(lambda ring, new: jax.lax.dynamic_update_index_in_dim(ring, new, slot, 0), data, row)


def _take(data: Experience, slot: Any, env: Any, length: int) -> Experience:
    slots = data.reward.shape[0]
    times = (slot[..., None] + np.arange(length)[(None,) * slot.ndim]) % slots
    picked: Experience = jax.tree.map(lambda leaf: leaf[times, env[..., None]], data)
    if isinstance(picked.is_first, np.ndarray):
        picked.is_first[..., 0] = True
        return picked
    return picked._replace(is_first=picked.is_first.at[..., 0].set(True))


def _named(rows: Experience) -> dict[str, Any]:
    """Leaves by name: observation parts as `observation.image`."""
    parts = {f"observation.{name}": leaf for name, leaf in rows.observation.items()}
    return parts | {name: leaf for name, leaf in rows._asdict().items() if name != "observation" and leaf is not None}
