"""The demo's picture: the same world driven without and with the shield."""

from pathlib import Path
from typing import Any

import numpy as np

from ambs.errors import extras

with extras():
    import matplotlib.pyplot as plt
    from matplotlib.patches import Circle

INK, HAZARD, GOAL, PATH, BAD, OVERRIDE, FUTURE = (
    "#1f2933",
    "#9db8e8",
    "#8fcf85",
    "#364f6b",
    "#d62839",
    "#f59e0b",
    "#b45309",
)


def draw(world: Any, off: Any, on: Any, futures: np.ndarray, file: Path) -> None:
    """Draw one episode without and with shield: of those with at least the median of goals, the one it saved most in."""
    saved = off.violated.sum(axis=1) - on.violated.sum(axis=1)
    usual = (on.goals >= np.median(on.goals)) & on.overridden.any(axis=1)
    shown = int(np.argmax(np.where(usual, saved, -np.inf)))
    figure, axes = plt.subplots(1, 2, figsize=(10.4, 5.6), layout="constrained")
    for axis, part, title in ((axes[0], off, "shield off"), (axes[1], on, "shield on")):
        _scene(axis, world, on.worst[shown].state, int(part.goals[shown]) + 1)
        path = part.positions[shown]
        axis.plot(*path.T, color=PATH, lw=0.9, zorder=3)
        hit = np.flatnonzero(part.violated[shown])
        axis.scatter(*path[hit + 1].T, s=12, color=BAD, zorder=5, label=f"violating steps ({hit.size})")
        if part is on:
            turned = np.flatnonzero(part.overridden[shown])
            axis.scatter(*path[turned].T, s=9, color=OVERRIDE, zorder=4, label=f"overridden steps ({turned.size})")
            for index, future in enumerate(futures[shown]):
                label = "imagined futures at one override" if index == 0 else None
                axis.plot(*future.T, color=FUTURE, lw=0.7, alpha=0.45, zorder=6, label=label)
        axis.set_title(f"{title}: {hit.size} violating steps, {part.goals[shown]} goals", color=INK, fontsize=11)
        axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.02), ncols=2, fontsize=8, frameon=False)
    figure.suptitle("A reckless driver in point_world, same world and same noise", color=INK, fontsize=12)
    figure.savefig(file, dpi=110)
    plt.close(figure)


def _scene(axis: Any, world: Any, state: Any, goals: int) -> None:
    for hazard in state.hazards:
        axis.add_patch(Circle(hazard, world.hazard_radius, color=HAZARD, zorder=1))
    for goal in state.goals[:goals]:
        axis.add_patch(Circle(goal, world.goal_radius, facecolor=GOAL, alpha=0.35, lw=0, zorder=0))
    size = world.half_size * 1.05
    axis.set(xlim=(-size, size), ylim=(-size, size), aspect="equal", xticks=[], yticks=[])
    for spine in axis.spines.values():
        spine.set_color("#cbd5e1")
