"""The environments' names with Gymnasium, such as `ambs/PointGoal1-v0`."""

from __future__ import annotations

import difflib
from typing import Any

import gymnasium

from ambs.errors import UserError

NAMESPACE = "ambs"
SAFETY_GYM = "ambs.envs.safety_gym.env:SafetyGym"
TASK_NAMES = ("PointGoal0", "PointGoal1", "PointGoal2", "CarGoal0", "CarGoal1")
SMALL_WORLDS = {
    "PointWorld": "ambs.envs.point_world:PointWorldEnv",
    "Grid": "ambs.envs.grid:GridEnv",
}


def register_all() -> None:
    """Tell Gymnasium about our environments; none of their code is imported before one is made."""
    entries: dict[str, tuple[str, dict[str, Any]]] = {name: (SAFETY_GYM, {"task": name}) for name in TASK_NAMES}
    entries |= {name: (entry_point, {}) for name, entry_point in SMALL_WORLDS.items()}
    for name, (entry_point, options) in entries.items():
        env_id = f"{NAMESPACE}/{name}-v0"
        if env_id not in gymnasium.registry:
            gymnasium.register(env_id, entry_point=entry_point, kwargs=options)


def registered() -> tuple[str, ...]:
    """Ids of all our environments, in order of registration."""
    return tuple(env_id for env_id in gymnasium.registry if env_id.startswith(f"{NAMESPACE}/"))


def full_id(name: str) -> str:
    """The registered id meant by `name`: `ambs/PointGoal1-v0`, or for short `PointGoal1`."""
    for candidate in (name, f"{NAMESPACE}/{name}", f"{NAMESPACE}/{name}-v0"):
        if candidate in gymnasium.registry:
            return candidate
    near = difflib.get_close_matches(name, (*registered(), *TASK_NAMES, *SMALL_WORLDS), n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise UserError(f"unknown environment {name!r}; ours are {', '.join(registered())}{hint}")


def make(name: str, **options: Any) -> gymnasium.Env:
    """Make a registered environment by its id or short name."""
    if options.get("render_mode") == "human":
        from ambs.envs.safety_gym.env import has_display

        if not has_display():
            raise UserError('render_mode "human" needs a display, and there is none here; use "rgb_array"')
    return gymnasium.make(full_id(name), **options)
