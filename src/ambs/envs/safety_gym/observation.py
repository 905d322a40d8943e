"""What an agent sees: a picture, a vector of sensor readings, or both."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np
from gymnasium import spaces

from ambs.envs.safety_gym.tasks import Task
from ambs.envs.safety_gym.worlds import SENSORS, VECTOR_SIZE, Worlds
from ambs.errors import UserError

Mode = Literal["vision", "vector", "both"]
Renderer = Literal["rays", "mujoco"]
View = Literal["chase", "top_down"]

Observation = np.ndarray | dict[str, np.ndarray]


@dataclass(frozen=True)
class Looks:
    """How pictures are made."""

    size: int = 64
    """Width and height of the agent's picture, pixels."""
    samples: Literal[1, 4] = 4
    """Rays per pixel."""
    mirror: bool = True
    """Whether the floor reflects."""
    palette: str = "safety_gymnasium"
    """Colours: "safety_gymnasium", or "openai" for the look of the first Safety Gym."""
    renderer: Renderer = "rays"
    """"rays" needs no OpenGL; "mujoco" draws with MuJoCo's own renderer where OpenGL works."""

    def __post_init__(self) -> None:
        if self.size < 1:
            raise UserError(f"size must be at least 1 pixel, got {self.size}")
        if self.renderer not in get_args(Renderer):
            raise UserError(f'renderer must be "rays" or "mujoco", got {self.renderer!r}')


@dataclass
class Observer:
    """Turns the state of n worlds into n observations."""

    task: Task
    mode: Mode
    looks: Looks
    _camera: Any = field(default=None, init=False)

    def __post_init__(self) -> None:
        if self.mode not in get_args(Mode):
            raise UserError(f'observation must be "vision", "vector" or "both", got {self.mode!r}')

    @property
    def space(self) -> spaces.Space:
        """The space of one observation."""
        size = self.looks.size
        vision = spaces.Box(0, 255, (size, size, 3), np.uint8)
        # Sensors have no bound of their own; infinity would be refused by Gymnasium's checker.
        high = np.full(VECTOR_SIZE, np.finfo(np.float32).max, np.float32)
        high[SENSORS:] = 1.0
        low = np.where(np.arange(VECTOR_SIZE) < SENSORS, -high, np.float32(0))
        vector = spaces.Box(low, high, dtype=np.float32)
        if self.mode == "both":
            return spaces.Dict({"vision": vision, "vector": vector})
        return vision if self.mode == "vision" else vector

    def observe(self, worlds: Worlds) -> Observation:
        """Observations of all worlds, each array with a leading axis n."""
        if self.mode == "vision":
            return self.pictures(worlds)
        vectors = worlds.vectors().astype(np.float32)
        return vectors if self.mode == "vector" else {"vision": self.pictures(worlds), "vector": vectors}

    def pictures(self, worlds: Worlds) -> np.ndarray:
        """Pictures from the robots' cameras, uint8 `[n, size, size, 3]`, row 0 on top."""
        return np.asarray(self.camera.render(*worlds.poses()))

    def view(self, worlds: Worlds, view: View, size: int) -> np.ndarray:
        """Pictures for people, uint8 `[n, size, size, 3]`: from behind the robot, or of the whole arena from above."""
        draw = self.camera.chase if view == "chase" else self.camera.top_down
        return np.asarray(draw(*worlds.poses(), size=size))

    @property
    def camera(self) -> Any:
        """The camera, made when it is first needed: without pictures neither JAX nor OpenGL is started."""
        if self._camera is None:
            robot = self.task.robot.name
            if self.looks.renderer == "mujoco":
                from ambs.envs.safety_gym.gl import MujocoCamera

                self._camera = MujocoCamera(robot, size=self.looks.size, palette=self.looks.palette)
            else:
                from ambs.envs.safety_gym.camera import Camera

                looks = self.looks
                self._camera = Camera(
                    robot, size=looks.size, samples=looks.samples, mirror=looks.mirror, palette=looks.palette
                )
        return self._camera
