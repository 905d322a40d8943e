"""Playing and writing down: what imagination said in every state, and what happened."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ambs.agent.networks import CRITICS
from ambs.config import Config
from ambs.foresight.scoring import Foreseen, foresee, of_model
from ambs.nn.precision import cast, compute_dtype
from ambs.streams import at, stream
from ambs.training.act import Player
from ambs.training.agent import Agent
from ambs.training.evaluate import Policy, evaluate

BATCH = 16
"""Environments played at once."""
CRITIC = {"task": "penalty", "backup": "backup"}
"""Who estimates the cost of a policy."""


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
    acted: np.ndarray
    """Whether the shield put the backup policy's action in place, bool `[rows]`."""
    risk: np.ndarray
    shield: np.ndarray
    cost: np.ndarray
    """As in `Foreseen`; NaN where nobody was asked."""
    critic: np.ndarray
    """What the policy's cost critic says."""
    action: np.ndarray
    """Executed, as the model has it, `[rows, actions]`."""
    kept: np.ndarray
    """Rows whose latent was kept, int `[kept]`."""
    latent: Any
    """Those latents, leaves `[kept, …]`; None if there are none."""


def play(
    agent: Agent,
    *,
    episodes: int | None = None,
    steps: int = 20_000,
    seed: int = 0,
    shield: bool = False,
    policy: Policy = "task",
    traces: int = 64,
    keep_every: int = 0,
    batch: int = BATCH,
    on_step: Callable[[int], None] | None = None,
) -> Record:
    """Play fresh layouts, `episodes` of them or as many as make `steps` agent steps, and write everything down.

    `traces` is the number of imagined futures per state, 0: none. `keep_every`: keep the latent of every so-manieth step.
    """
    watcher = _Watcher(agent, policy, traces, keep_every, on_step)
    common: dict[str, Any] = {"seed": seed, "shield": shield, "policy": policy, "watch": watcher}
    first = min(batch, episodes or batch)
    rows = evaluate(agent, first, batch=batch, **common)
    if episodes is None:
        mean = sum(row["steps"] for row in rows) / len(rows)
        episodes = max(first, batch * int(np.ceil(steps / (mean * batch))))
    if episodes > first:
        rows += evaluate(agent, episodes - first, begin=first, batch=batch, **common)
    return watcher.record({row["episode"] for row in rows if row["ended"] == "terminated"})


class _Watcher:
    """Looks on and takes notes, per batch a list of steps."""

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
        note |= {"acted": np.asarray(seen["decision"].overridden)}
        latent = agent.memory.latent
        if self.score is not None:
            note["said"] = self.score(agent.player, latent, agent.raw_proposed, agent.root, agent.steps)
        if self.keep_every and len(batch) % self.keep_every == 0:
            note["latent"] = jax.device_get(latent)
        batch.append(note)

    def stepped(self, first: int, seen: dict[str, Any]) -> None:
        """What came of it."""
        self.batches[first][-1]["violated"] = seen["infos"]["frame_violations"].any(axis=1)
        self.steps += len(seen["live"])
        if self.on_step is not None:
            self.on_step(self.steps)

    def played(self, first: int, envs: Any) -> None:
        """Fetch the answers."""
        del envs
        for note in self.batches[first]:
            if "said" in note:
                note["said"] = jax.device_get(note["said"])

    def record(self, terminated: set[int]) -> Record:
        """All notes as rows."""
        parts: dict[str, list[Any]] = {name: [] for name in Record._fields if name not in ("kept", "latent")}
        kept: list[int] = []
        latents: list[Any] = []
        rows = number = 0
        for first, notes in sorted(self.batches.items()):
            live = np.stack([note["live"] for note in notes])
            for env in np.flatnonzero(live.any(axis=0)).tolist():
                own = notes[: int(live[:, env].sum())]
                over = np.zeros(len(own), bool)
                over[-1] = first + env in terminated
                for name in ("unsafe_now", "violated", "acted", "action"):
                    parts[name].append(np.stack([note[name][env] for note in own]).astype(_kind(name)))
                parts["episode"].append(np.full(len(own), number))
                parts["over"].append(over)
                for name, values in _answers(own, env).items():
                    parts[name].append(values)
                here = [index for index, note in enumerate(own) if "latent" in note]
                kept += [rows + index for index in here]
                latents += [jax.tree.map(lambda leaf, env=env: leaf[env], own[index]["latent"]) for index in here]
                rows, number = rows + len(own), number + 1
        arrays = {name: np.concatenate(values) for name, values in parts.items()}
        latent = jax.tree.map(lambda *leaves: np.stack(leaves), *latents) if latents else None
        return Record(**arrays, kept=np.array(kept, int), latent=latent)


def _kind(name: str) -> Any:
    return np.float32 if name == "action" else bool


def _answers(notes: list[dict[str, Any]], env: int) -> dict[str, np.ndarray]:
    names = ("risk", "shield", "cost", "critic")
    if "said" not in notes[0]:
        return dict.fromkeys(names, np.full(len(notes), np.nan))
    return {name: np.array([note["said"][name][env] for note in notes], float) for name in names}


@functools.lru_cache(maxsize=8)
def compiled_score(config: Config, policy: str, traces: int) -> Any:
    """(player, latent, proposed, root, step) -> what imagination and critic say, compiled."""
    return jax.jit(functools.partial(_score, config=config, policy=policy, traces=traces, dtype=compute_dtype()))


def _score(
    player: Player,
    latent: Any,
    proposed: Any,
    root: Any,
    step: Any,
    *,
    config: Config,
    policy: str,
    traces: int,
    dtype: Any,
) -> dict[str, jax.Array]:
    state = cast(latent, dtype)
    key = at(stream(root, "foresight"), step)
    said: Foreseen = foresee(of_model(player, config, policy, dtype), key, state, proposed, traces)
    critic = cast(player.critics, dtype).only(CRITIC[policy])
    value = jax.vmap(lambda latent: critic.values(latent.features)[0])(state)
    return {name: jnp.asarray(part, jnp.float32) for name, part in {**said._asdict(), "critic": value}.items()}


assert set(CRITIC.values()) <= set(CRITICS)
