"""What would have happened without the shield: from the very state of an override, in the real simulator."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ambs.acting.act import actor_state
from ambs.acting.agent import Agent
from ambs.acting.real_futures import last_labels
from ambs.envs.snapshot import Snapshot, together
from ambs.recording.futures import PICTURES, shown_steps
from ambs.spec.parser import parse_path
from ambs.streams import stream


class Moment(NamedTuple):
    """One environment at one decision: all that is needed to go back to it."""

    env: int
    """Its number in the batch."""
    number: int
    """The number of the decision, as the agent counts."""
    latent: Any
    proposed: np.ndarray
    """As the model has it."""
    snapshot: Snapshot | None
    """Of the environment, before the step; None where it was not taken."""
    labels: np.ndarray | None = None
    """bool `[atoms]` before the step; only path formulas other than G≤n Ψ ask for them."""


class Twin(NamedTuple):
    """How the proposed action and the task policy after it fared, n steps at most."""

    violation: int
    """Step of the first violation, 0: none within n; of a path formula other than G≤n Ψ the step at which it was lost."""
    taken: int
    """Steps: the episode may have ended first."""
    labels: np.ndarray
    """bool `[n, frames, atoms]`."""
    robot: np.ndarray | None
    """Where the robot was, `[n, 3]`, NaN after the end."""
    shown: np.ndarray
    """Steps of which there are pictures."""
    image: np.ndarray | None
    """uint8 `[pictures, size, size, channels]`."""


def roll_twins(agent: Agent, envs: Any, moments: list[Moment], steps: int) -> list[Twin]:
    """Restore each state and let the task policy act unshielded, with the noise that the world had in store.

    `envs` are spare environments, as many as the agent's batch; moments go in batches of that size.
    """
    size, found = envs.num_envs, []
    for first in range(0, len(moments), size):
        some = moments[first : first + size]
        found += _batch(agent, envs, [*some, *[some[-1]] * (size - len(some))], steps)[: len(some)]
    return found


def _batch(agent: Agent, envs: Any, moments: list[Moment], steps: int) -> list[Twin]:
    envs.reset(seed=0)
    envs.set_state(together([moment.snapshot for moment in moments if moment.snapshot is not None]))
    latent = jax.tree.map(lambda *leaves: jnp.stack(leaves), *[moment.latent for moment in moments])
    action = np.stack([moment.proposed for moment in moments])
    memory = actor_state(latent, jnp.asarray(action))
    root = stream(agent.root, "twin")
    over = np.zeros(len(moments), bool)
    states: list[np.ndarray] = []
    if agent.config.shield.path is not None:
        states.append(np.stack([moment.labels for moment in moments if moment.labels is not None]))
    rows: list[dict[str, Any]] = []
    for step in range(1, steps + 1):
        raw, _, terminated, truncated, infos = envs.step(agent.interface.to_env(action))
        valid = infos["frame_valid"] & ~over[:, None]
        scenes = envs.scenes(range(len(moments)))
        row = {"valid": valid.any(axis=1), "labels": infos["frame_labels"] & valid[..., None]}
        row |= {"violated": (infos["frame_violations"] & valid).any(axis=1)}
        row |= {"image": agent.interface.observe(raw).get("image")} if agent.interface.spec.observation.image else {}
        unknown = np.full(3, np.nan, np.float32)
        places = [scenes[index].robot if index in scenes else unknown for index in range(len(moments))]
        row |= {"robot": np.stack(places)} if scenes or (rows and "robot" in rows[0]) else {}
        rows.append(row)
        if states:  # An episode that has ended stays where it ended.
            states.append(np.where(over[:, None], states[-1], last_labels(infos)))
        over |= terminated | truncated
        if over.all() or step == steps:
            break
        # Each group of moments and each step draws noise of its own.
        memory, chosen = agent.follow(memory, raw, infos["labels"], root, moments[0].number * steps + step)
        action = np.asarray(chosen)
    lost = _lost(agent, states, steps) if states else None
    return [_twin(rows, index, steps, None if lost is None else int(lost[index])) for index in range(len(moments))]


def _lost(agent: Agent, states: list[np.ndarray], steps: int) -> np.ndarray:
    """Step at which the shield's path formula was lost, int `[moments]`; 0: it was satisfied."""
    known = agent.interface.spec.atoms
    whole = np.stack([*states, *[states[-1]] * (steps + 1 - len(states))], axis=1)
    return np.maximum(parse_path(agent.config.shield.path or "", known).lost(whole, known), 0)


def _twin(rows: list[dict[str, Any]], index: int, steps: int, lost: int | None) -> Twin:
    """`lost`: where a path formula was, in place of the first violation of Ψ."""
    mine = [{name: part[index] for name, part in row.items()} for row in rows if row["valid"][index]]
    broken = [step for step, row in enumerate(mine, 1) if row["violated"]]
    labels = np.zeros((steps, *rows[0]["labels"].shape[1:]), bool)
    robot = np.full((steps, 3), np.nan, np.float32) if "robot" in rows[0] else None
    for step, row in enumerate(mine):
        labels[step] = row["labels"]
        if robot is not None:
            robot[step] = row["robot"]
    violation = lost if lost is not None else broken[0] if broken else 0
    shown = np.minimum(np.asarray(shown_steps(jnp.array(violation), steps)), max(len(mine), 1))
    image = np.stack([mine[step - 1]["image"] for step in shown]) if mine and "image" in mine[0] else None
    assert len(shown) <= PICTURES
    return Twin(violation, len(mine), labels, robot, shown, image)
