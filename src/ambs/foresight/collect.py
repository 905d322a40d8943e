"""Playing and writing down: what imagination said in every state, and what happened."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ambs.acting.act import Player
from ambs.acting.agent import Agent
from ambs.acting.evaluate import Policy, evaluate
from ambs.acting.scoring import foresee, of_model
from ambs.config import Config
from ambs.envs.snapshot import Snapshot, one_env
from ambs.nn.precision import cast, compute_dtype
from ambs.streams import at, stream

BATCH = 16
"""Environments played at once."""
CRITIC = {"task": "penalty", "backup": "backup"}
"""Who estimates the cost of a policy."""


class Kept(NamedTuple):
    """All that is needed to go back to some of the rows."""

    row: np.ndarray
    """Their numbers, int `[kept]`."""
    latent: Any
    """The agent's memory, leaves `[kept, …]`."""
    proposed: np.ndarray
    """As the model has it, `[kept, actions]`."""
    snapshot: list[Snapshot | None]
    """The state of each environment, as one of a vector environment of a single one; None where it cannot be saved."""


class Record(NamedTuple):
    """Played agent steps, one row each, episode after episode."""

    episode: np.ndarray
    """Number of the episode, from 0 without gaps, int `[rows]`."""
    unsafe_now: np.ndarray
    """Whether the state violates Ψ already, bool `[rows]`."""
    violated: np.ndarray
    """Whether Ψ fails in any frame of the step taken from it, bool `[rows]`."""
    over: np.ndarray
    """Whether the world ended with this step: nothing can fail after, bool `[rows]`. A time limit is no such end."""
    overridden: np.ndarray
    """Whether the shield put the backup policy's action in place, bool `[rows]`."""
    action: np.ndarray
    """Executed, as the model has it, `[rows, actions]`."""
    risk: np.ndarray
    shield: np.ndarray
    cost: np.ndarray
    """As in `Foreseen`; NaN where nobody was asked."""
    critic: np.ndarray
    """What the policy's cost critic says; NaN likewise."""
    forwards: np.ndarray
    """Where an entry was: speed in the direction in which the robot looks (m/s); NaN elsewhere and where nobody tells."""
    in_view: np.ndarray
    """Likewise: 1 if what was entered lay in the front camera's picture before the step, else 0."""
    kept: Kept | None = None


def play(
    agent: Agent,
    *,
    episodes: int | None = None,
    steps: int = 20_000,
    seed: int = 0,
    shield: bool = False,
    policy: Policy = "task",
    traces: int = 0,
    keep_every: int = 0,
    batch: int = BATCH,
    on_step: Callable[[int], None] | None = None,
    given: Any = None,
) -> Record:
    """Play fresh layouts, `episodes` of them or as many as make `steps` agent steps, and write everything down.

    `traces` is the number of imagined futures per state, 0: none. `keep_every`: so many steps lie between states that can be
    gone back to, 0: none can. `given`: the policy that a run guards, which acts in place of its clone.
    """
    watcher = _Watcher(agent, policy, traces, keep_every, on_step)
    common: dict[str, Any] = {"seed": seed, "shield": shield, "policy": policy, "watch": watcher, "batch": batch}
    common["given"] = given
    rows = evaluate(agent, episodes or batch, **common)
    if episodes is None:
        mean = sum(row["steps"] for row in rows) / len(rows)
        more = batch * int(np.ceil(steps / (mean * batch))) - batch
        rows += evaluate(agent, more, begin=batch, **common) if more else []
    return watcher.record({row["episode"] for row in rows if row["ended"] == "terminated"})


class _Watcher:
    """Looks on and takes notes, per batch a list of steps; every note has an entry per environment."""

    def __init__(self, agent: Agent, policy: str, traces: int, keep_every: int, on_step: Any) -> None:
        self.agent, self.keep_every, self.on_step = agent, keep_every, on_step
        self.score = compiled_score(agent.config, policy, traces) if traces else None
        self.batches: dict[int, list[dict[str, Any]]] = {}
        self.steps = 0

    def decided(self, first: int, seen: dict[str, Any]) -> None:
        """Ask imagination, without waiting for its answer."""
        agent, batch = self.agent, self.batches.setdefault(first, [])
        psi, atoms = agent.interface.spec.psi, agent.interface.spec.atoms
        note: dict[str, Any] = {"live": np.isin(np.arange(agent.batch), seen["live"])}
        note |= {"unsafe_now": ~psi.holds(np.asarray(seen["labels"]), atoms), "action": agent.raw_action}
        note |= {"overridden": np.asarray(seen["decision"].overridden)}
        latent = agent.memory.latent
        if self.score is not None:
            note["said"] = self.score(agent.player, latent, agent.raw_proposed, agent.root, agent.steps)
        if self.keep_every and len(batch) % self.keep_every == 0:
            note |= {"latent": jax.device_get(latent), "proposed": np.asarray(agent.raw_proposed, np.float32)}
            note["snapshot"] = seen["envs"].get_state() if seen["envs"].can_save else None
        self.before = seen["envs"].outlook()
        batch.append(note)

    def stepped(self, first: int, seen: dict[str, Any]) -> None:
        """What came of it."""
        note = self.batches[first][-1]
        note["violated"] = seen["infos"]["frame_violations"].any(axis=1)
        note |= {"forwards": np.full(self.agent.batch, np.nan), "in_view": np.full(self.agent.batch, np.nan)}
        entered = np.flatnonzero(note["violated"] & ~note["unsafe_now"] & note["live"])
        if self.before is not None and entered.size:
            now = seen["envs"].outlook()
            note["forwards"][entered] = now.forwards[entered]
            note["in_view"][entered] = self.before.seen[entered, now.gaps[entered].argmin(axis=1)]
        self.steps += len(seen["live"])
        if self.on_step is not None:
            self.on_step(self.steps)

    def played(self, first: int, envs: Any) -> None:
        """Fetch the answers."""
        del envs
        for note in self.batches[first]:
            note |= jax.device_get(note.pop("said", {}))

    def record(self, terminated: set[int]) -> Record:
        """All notes as rows."""
        parts: list[dict[str, np.ndarray]] = []
        moments: list[tuple[int, Any, np.ndarray, Snapshot | None]] = []
        rows = 0
        for first, notes in sorted(self.batches.items()):
            lengths = np.sum([note["live"] for note in notes], axis=0)
            for env in np.flatnonzero(lengths).tolist():
                own = notes[: int(lengths[env])]
                parts.append({**_rows(own, env, first + env in terminated), "episode": np.full(len(own), len(parts))})
                moments += [(rows + index, *_moment(note, env)) for index, note in enumerate(own) if "latent" in note]
                rows += len(own)
        arrays = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        return Record(**arrays, kept=_kept(moments))


def _rows(notes: list[dict[str, Any]], env: int, terminated: bool) -> dict[str, np.ndarray]:
    """One episode."""
    found = {name: np.stack([note[name][env] for note in notes]) for name in ("unsafe_now", "violated", "overridden")}
    found |= {name: np.array([note[name][env] for note in notes], float) for name in ("forwards", "in_view")}
    found["action"] = np.stack([note["action"][env] for note in notes]).astype(np.float32)
    for name in ("risk", "shield", "cost", "critic"):
        found[name] = np.array([note[name][env] if name in note else np.nan for note in notes], float)
    found["over"] = np.zeros(len(notes), bool)
    found["over"][-1] = terminated
    return found


def _moment(note: dict[str, Any], env: int) -> tuple[Any, np.ndarray, Snapshot | None]:
    latent = jax.tree.map(lambda leaf: leaf[env], note["latent"])
    return latent, note["proposed"][env], None if note["snapshot"] is None else one_env(note["snapshot"], env)


def _kept(moments: list[tuple[int, Any, np.ndarray, Snapshot | None]]) -> Kept | None:
    if not moments:
        return None
    row, latent, proposed, snapshot = zip(*moments, strict=True)
    return Kept(
        np.array(row), jax.tree.map(lambda *leaves: np.stack(leaves), *latent), np.stack(proposed), list(snapshot)
    )


@functools.lru_cache(maxsize=8)
def compiled_score(config: Config, policy: str, traces: int) -> Any:
    """(player, latent, proposed, root, step) -> what imagination and critic say by name, `[envs]`; compiled."""

    def score(player: Player, latent: Any, proposed: Any, root: Any, step: Any) -> dict[str, jax.Array]:
        dtype = compute_dtype()
        state, key = cast(latent, dtype), at(stream(root, "foresight"), step)
        said = foresee(of_model(player, config, policy, dtype), key, state, proposed, traces)
        critic = cast(player.critics, dtype).only(CRITIC[policy])
        value = jax.vmap(lambda latent: critic.values(latent.features)[0])(state)
        return {name: part.astype(jnp.float32) for name, part in {**said._asdict(), "critic": value}.items()}

    return jax.jit(score)
