"""One world as a Gymnasium environment."""

from __future__ import annotations

import os
import sys
import warnings
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from ambs.config.checks import MOST_PIXELS, whole
from ambs.envs.options import choose_spec
from ambs.envs.safety_gym.observation import VIEWS, Observation, Options, one_of
from ambs.envs.safety_gym.tasks import find_task
from ambs.errors import UserError, extras
from ambs.spec.formula import Atoms, Formula


def action_space() -> spaces.Box:
    """Two actuators in [−1, 1]; what lies outside is clipped."""
    return spaces.Box(-1.0, 1.0, (2,), np.float32)


def has_display() -> bool:
    """Whether a window could be opened here."""
    return sys.platform in ("darwin", "win32") or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))


class SafetyGym(gymnasium.Env[Observation, np.ndarray]):
    """A robot that seeks goals, among hazards and vases.

    `info["labels"]` are the atoms that hold, bool `[atoms]` in the order of `atoms`; `info["cost"]` is 1.0 if Ψ
    is violated, else 0.0. The attribute `psi` is Ψ; `spec` is Gymnasium's name for something else.
    """

    metadata: dict[str, Any] = {  # noqa: RUF012 (Gymnasium's own way)
        "render_modes": ["rgb_array", "human"] if has_display() else ["rgb_array"],
        "render_fps": 30,
    }

    def __init__(
        self,
        task: str = "PointGoal1",
        *,
        render_mode: str | None = None,
        view: str = "chase",
        view_size: int = 256,
        **options: Any,
    ) -> None:
        """Make the environment; `options` are the fields of `Options`."""
        one_of("render_mode", render_mode, (None, "rgb_array", "human"))
        one_of("view", view, VIEWS)
        whole("view_size", view_size, 1, MOST_PIXELS)
        if render_mode == "human" and not has_display():
            raise UserError('render_mode "human" needs a display, and there is none here; use "rgb_array"')
        self.task = find_task(task)
        chosen = Options(**options)
        self.atoms: Atoms = self.task.atoms
        self.psi: Formula = choose_spec(chosen.spec, self.task.spec, self.atoms)
        self.observer = chosen.observer(self.task)
        self.worlds = chosen.worlds(self.task)
        self.observation_space = self.observer.space
        self.action_space = action_space()
        self.mirror = self.observer.mirror
        self.render_mode = render_mode
        self.metadata = {**self.metadata, "render_fps": round(1 / (chosen.frame_skip * self.task.robot.timestep))}
        self.view, self.view_size = view, view_size
        self._over = True
        self._window: Any = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode in a new layout; there are no options."""
        super().reset(seed=seed, options=options)
        self.worlds.reset(0, self.np_random)
        self._over = False
        if self.render_mode == "human":
            self._show()
        return self.observe(), self._info(self.worlds.labels()[0])

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Advance by one frame."""
        if self._over:
            raise UserError("the episode is over: call reset before the next step")
        frame = self.worlds.advance(check_action(action)[None])
        terminated, truncated = bool(frame.terminated[0]), bool(frame.truncated[0])
        self._over = terminated or truncated
        info = self._info(frame.labels[0])
        if frame.faults:
            info["fault"] = frame.faults[0]
            warnings.warn(f"{self.task.name}, frame {self.worlds.frames[0]}: {frame.faults[0]}", RuntimeWarning, 2)
        if self.render_mode == "human":
            self._show()
        return self.observe(), float(frame.reward[0]), terminated, truncated, info

    def observe(self) -> Observation:
        """The observation of the current state."""
        seen = self.observer.observe(self.worlds)
        return {name: array[0] for name, array in seen.items()} if isinstance(seen, dict) else seen[0]

    def render(self) -> Any:
        """A picture for people, uint8 `[view_size, view_size, 3]`, in render mode "rgb_array"."""
        return self.picture(self.view, self.view_size) if self.render_mode == "rgb_array" else None

    def picture(self, view: str, size: int) -> np.ndarray:
        """The current state as a picture for people, uint8 `[size, size, 3]`."""
        return self.observer.view(self.worlds, view, size)[0]

    def get_state(self) -> dict[str, np.ndarray]:
        """Everything the future depends on, random numbers included."""
        return {**self.worlds.get_state(), "over": np.array(self._over)}

    def set_state(self, state: dict[str, np.ndarray]) -> None:
        """Continue from a saved state exactly as the saved environment would have."""
        self.worlds.set_state(state)
        self.np_random = self.worlds.rng(0)
        self._over = bool(state["over"])

    def close(self) -> None:
        """Close the window, if there is one."""
        self.worlds.close()
        self.observer.close()
        if self._window is not None:
            import matplotlib.pyplot as plt

            plt.close(self._window.figure)
            self._window = None

    def _info(self, labels: np.ndarray) -> dict[str, Any]:
        return {"labels": labels, "cost": float(not self.psi.holds(labels, self.atoms))}

    def _show(self) -> None:
        with extras():
            import matplotlib.pyplot as plt

        picture = self.picture(self.view, self.view_size)
        if self._window is None:
            plt.ion()
            self._window = plt.figure(self.task.name).add_axes((0, 0, 1, 1)).imshow(picture)
        self._window.set_data(picture)
        plt.pause(1e-3)


def check_action(action: Any) -> np.ndarray:
    """The action as float `[2]`; a sentence for what is no action."""
    try:
        array = np.asarray(action, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise UserError(f"an action must be two numbers, got {action!r}") from error
    if array.shape != (2,):
        raise UserError(f"an action must have shape (2,), got {array.shape}")
    if not np.isfinite(array).all():
        raise UserError(f"an action must be finite, got {array.tolist()}")
    return array
