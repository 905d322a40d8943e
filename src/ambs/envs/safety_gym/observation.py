"""What an agent sees: a picture, a vector of sensor readings, or both."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
from gymnasium import spaces

from ambs.config.checks import MOST_PIXELS, is_among, whole
from ambs.envs.mirror import Mirror
from ambs.envs.safety_gym import lidar
from ambs.envs.safety_gym.objects import Kind
from ambs.envs.safety_gym.robots import FRAME_SKIP, POINT, Robot
from ambs.envs.safety_gym.tasks import MAX_FRAMES, Task
from ambs.envs.safety_gym.worlds import SENSORS, Worlds
from ambs.errors import UserError
from ambs.spec.formula import Formula

MODES = ("vision", "vector", "both")
RENDERERS = ("rays", "mujoco")
PALETTES = ("safety_gymnasium", "openai")
CAMERAS = ("front", "front+back")
VIEWS = ("chase", "top_down")

Observation = np.ndarray | dict[str, np.ndarray]


@dataclass(frozen=True)
class Looks:
    """How pictures are made."""

    size: int = 64
    """Width and height of the agent's picture, pixels."""
    samples: int = 4
    """Rays per pixel, 1 or 4."""
    mirror: bool = True
    """Whether the floor reflects."""
    palette: str = "safety_gymnasium"
    """Colours: "safety_gymnasium", or "openai" for the look of the first Safety Gym."""
    renderer: str = "rays"
    """"rays" needs no OpenGL; "mujoco" draws with MuJoCo's own renderer where OpenGL works."""
    cameras: str = "front"
    """"front", or "front+back" for a picture of six channels: what is ahead, then what is behind."""

    def __post_init__(self) -> None:
        whole("size, in pixels,", self.size, 1, MOST_PIXELS)
        one_of("renderer", self.renderer, RENDERERS)
        one_of("palette", self.palette, PALETTES)
        one_of("samples", self.samples, (1, 4))
        one_of("cameras", self.cameras, CAMERAS)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Height, width and channels of the agent's picture."""
        return self.size, self.size, 6 if self.cameras == "front+back" else 3


@dataclass
class Observer:
    """Turns the state of n worlds into n observations."""

    task: Task
    mode: str
    looks: Looks
    _camera: Any = field(default=None, init=False)

    def __post_init__(self) -> None:
        one_of("observation", self.mode, MODES)

    @property
    def space(self) -> spaces.Space:
        """The space of one observation."""
        vision = spaces.Box(0, 255, self.looks.shape, np.uint8)
        # Sensors have no bound of their own; infinity would be refused by Gymnasium's checker.
        entries = SENSORS + len(self.task.lidars) * lidar.BINS
        high = np.full(entries, np.finfo(np.float32).max, np.float32)
        high[SENSORS:] = 1.0
        low = np.where(np.arange(entries) < SENSORS, -high, np.float32(0))
        vector = spaces.Box(low, high, dtype=np.float32)
        if self.mode == "both":
            return spaces.Dict({"vision": vision, "vector": vector})
        return vision if self.mode == "vision" else vector

    @property
    def mirror(self) -> Mirror:
        """How a step looks with left and right exchanged."""
        whole = mirror_of(self.task.robot, len(self.task.lidars))
        return Mirror(*whole[:2]) if self.mode == "vision" else whole

    def observe(self, worlds: Worlds) -> Observation:
        """Observations of all worlds, each array with a leading axis n."""
        if self.mode == "vision":
            return self.pictures(worlds)
        vectors = worlds.vectors().astype(np.float32)
        return vectors if self.mode == "vector" else {"vision": self.pictures(worlds), "vector": vectors}

    def pictures(self, worlds: Worlds) -> np.ndarray:
        """Pictures from the robots' cameras, uint8 `[n, size, size, 3 or 6]`, row 0 on top."""
        scene = self.scene(worlds)
        views = [self.camera.render(*scene)]
        if self.looks.cameras == "front+back":
            views.append(self.camera.back(*scene))
        return np.concatenate(views, axis=-1)

    def view(self, worlds: Worlds, view: str, size: int) -> np.ndarray:
        """Pictures for people, uint8 `[n, size, size, 3]`: from behind the robot, or of the whole arena from above."""
        one_of("view", view, VIEWS)
        draw = self.camera.chase if view == "chase" else self.camera.top_down
        return np.asarray(draw(*self.scene(worlds), size=size))

    @property
    def camera(self) -> Any:
        """The camera, made when it is first needed: without pictures neither JAX nor OpenGL is started."""
        if self._camera is None:
            make = _opengl if self.looks.renderer == "mujoco" else _rays
            self._camera = make(self.task.robot.name, self.looks, self.task.goal, self.task.kinds)
        return self._camera

    def close(self) -> None:
        """Give back what OpenGL holds."""
        if self._camera is not None and self.looks.renderer == "mujoco":
            self._camera.close()
        self._camera = None

    def scene(self, worlds: Worlds) -> Sequence[Any]:
        """What the camera takes, on the device where it draws."""
        if self.looks.renderer == "mujoco":
            return worlds.poses()
        import jax.numpy as jnp

        return [jnp.asarray(array, jnp.float32) for array in worlds.poses()]


@dataclass(frozen=True)
class Options(Looks):
    """What the single and the vector environment are made with; docs/environments.md tells what they mean."""

    observation: str = "vision"
    spec: str | Formula | None = None
    collision: str = "contact"
    frame_skip: int = FRAME_SKIP
    max_frames: int = MAX_FRAMES

    def observer(self, task: Task) -> Observer:
        """What turns the states of such worlds into observations."""
        return Observer(task, self.observation, Looks(**{one.name: getattr(self, one.name) for one in fields(Looks)}))

    def worlds(self, task: Task, num: int = 1, threads: int = 1) -> Worlds:
        """The worlds themselves; without vectors nobody asks for accelerations."""
        return Worlds(
            task,
            num,
            collision=self.collision,
            frame_skip=self.frame_skip,
            max_frames=self.max_frames,
            accelerations=self.observation != "vision",
            threads=threads,
        )


def mirror_of(robot: Robot, kinds: int) -> Mirror:
    """A robot's actions, and its vector with readings of so many kinds, with left and right exchanged.

    The world is mirrored in a plane that contains the vertical and the magnetic field, so that both are the same again.
    A plane along the field in the middle of a floor tile also keeps the checker; only the floor's edges are then off, by
    one tile. Accelerations, velocities and the field change sign along the robot's sideways axis, rates of turn along the
    two others.
    """
    across = np.where(np.arange(3) == robot.side, -1.0, 1.0)
    # The angle a is seen at -a where the sideways axis is y, at half a turn - a where it is x.
    last = lidar.BINS - 1 if robot.side == 1 else lidar.BINS // 2 - 1
    bins = (last - np.arange(lidar.BINS)) % lidar.BINS
    order = [np.arange(SENSORS), *(SENSORS + kind * lidar.BINS + bins for kind in range(kinds))]
    sign = [across, across, -across, across, np.ones(kinds * lidar.BINS)]
    # A torque about the sideways axis stays as it is, so the Car's wheels only change places.
    actions = ((0, 1), (1.0, -1.0)) if robot is POINT else ((1, 0), (1.0, 1.0))
    return Mirror(*actions, tuple(np.concatenate(order).tolist()), tuple(np.concatenate(sign).tolist()))


def _opengl(robot: str, looks: Looks, goal: Kind, kinds: tuple[Kind, ...]) -> Any:
    from ambs.envs.safety_gym.gl import MujocoCamera

    options: dict[str, Any] = {"size": looks.size, "palette": looks.palette}
    return MujocoCamera(robot, **options, goal=goal, kinds=kinds)


@functools.cache
def _rays(robot: str, looks: Looks, goal: Kind, kinds: tuple[Kind, ...]) -> Any:
    """A camera without state, shared by all environments that look alike, so that it is compiled once."""
    from ambs.envs.safety_gym.camera import Camera

    options: dict[str, Any] = {name: getattr(looks, name) for name in ("size", "samples", "mirror", "palette")}
    return Camera(robot, **options, goal=goal, kinds=kinds)


def one_of(name: str, value: Any, choices: Sequence[Any]) -> None:
    """Refuse, in a sentence, an option that is none of the choices."""
    if not is_among(value, tuple(choices)):
        raise UserError(f"{name} must be {' or '.join(map(repr, choices))}, got {value!r}")
