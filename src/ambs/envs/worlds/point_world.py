"""`point_world`: a noisy two-dimensional double integrator among round hazards.

Small enough that its true safety probability can be computed by brute force, and in one dimension by quadrature; continuous
enough to be worth shielding. The physics is told twice: in JAX for the shield, which imagines many worlds at once, and in
plain numbers for the Gymnasium environment, which has one at a time and steps it ten times faster so.
"""

import itertools
import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key

from ambs.dynamics import Dynamics, Step
from ambs.envs.mirror import Mirror
from ambs.envs.options import check_render_mode
from ambs.envs.scene import Scene, scene
from ambs.envs.snapshot import Snapshot, check_state, generator_from_array, generator_to_array
from ambs.errors import UserError
from ambs.spec.formula import Atoms, Formula
from ambs.spec.parser import parse_formula

ATOMS = Atoms(("hazard", "outside"))


class State(NamedTuple):
    """robot `[4]`: position (m) and velocity (m/s); goals `[goals, 2]`, `reached` of them so far; hazards `[hazards, 2]`."""

    robot: Any
    goals: Any
    reached: Any
    hazards: Any

    @property
    def goal(self) -> Any:
        """Where the robot is to go now: `[2]`."""
        return self.goals[self.reached % self.goals.shape[0]]


@dataclass(frozen=True)
class PointWorld:
    """The physics. One control step: v' = damping·v + dt·acceleration·a + noise·ξ, x' = x + dt·v', ξ standard normal."""

    half_size: float = 1.5
    """The arena reaches from −half_size to +half_size (m) on both axes; atom `outside` holds beyond."""
    hazards: int = 2
    sensed: int = 1
    """Hazards that the robot senses: the nearest ones."""
    sensor_range: float = 0.5
    """How far away the edge of a hazard or of the arena is sensed (m)."""
    hazard_radius: float = 0.2
    """Atom `hazard` holds where the robot's centre is this near to a hazard's (m)."""
    goal_radius: float = 0.3
    dt: float = 0.05
    """Control step (s)."""
    acceleration: float = 5.0
    """At full action (m/s²)."""
    damping: float = 0.75
    """Share of the velocity kept per step; 0 makes each step's velocity new."""
    noise: tuple[float, float] = (0.03, 0.03)
    """Standard deviation of the velocity noise per step and axis (m/s)."""
    episode_steps: int = 400
    goals: int = 32
    """Goals drawn with the layout; after the last one the first is next again."""

    def __post_init__(self) -> None:
        positive = (
            "half_size",
            "hazard_radius",
            "sensor_range",
            "goal_radius",
            "dt",
            "acceleration",
            "episode_steps",
            "goals",
        )
        for name in positive:
            if not getattr(self, name) > 0:
                raise UserError(f"{name} of point_world must be above 0, got {getattr(self, name)}")
        if not 0 <= self.damping < 1:
            raise UserError(f"damping of point_world must lie in [0, 1), got {self.damping}")
        for name in ("hazards", "sensed"):
            if getattr(self, name) < 0:
                raise UserError(f"{name} of point_world must be at least 0, got {getattr(self, name)}")

    @property
    def reach(self) -> float:
        """No position, difference of positions or velocity exceeds this in an episode (m, m/s; noise below 10 σ)."""
        speed = (self.dt * self.acceleration + 10 * max(self.noise)) / (1 - self.damping)
        return 2 * self.half_size + speed * max(1.0, self.dt * self.episode_steps)

    def advance(self, state: State, action: Any, noise: Any) -> tuple[State, Any, Any]:
        """One step with action `[2]` and standard normal noise `[2]`: next state, reward, labels `[atoms]`.

        Reward is the distance gained on the goal, + 1 on reaching it; labels are those of the state arrived in.
        """
        push = self.dt * self.acceleration * jnp.clip(action, -1.0, 1.0)
        velocity = self.damping * state.robot[2:] + push + jnp.asarray(self.noise, dtype=noise.dtype) * noise
        position = state.robot[:2] + self.dt * velocity
        before, after = _length(state.goal - state.robot[:2]), _length(state.goal - position)
        reached = (after <= self.goal_radius).astype(state.reached.dtype)
        following = state._replace(robot=jnp.concatenate([position, velocity]), reached=state.reached + reached)
        return following, before - after + reached, self.labels(following)

    def labels(self, state: State) -> Any:
        """Labels `[atoms]` of a state."""
        position = state.robot[:2]
        hazard = (((state.hazards - position[None]) ** 2).sum(axis=-1) <= self.hazard_radius**2).any()
        return jnp.stack([hazard, (jnp.abs(position) > self.half_size).any()])

    def dynamics(self) -> Dynamics:
        """The true model for a shield: (key, State, action) -> Step."""

        def step(key: Key[Array, ""], state: State, action: Any) -> Step:
            following, _, labels = self.advance(state, action, jax.random.normal(key, (2,), state.robot.dtype))
            return Step(following, labels[None], jnp.ones(()))

        return step

    def sample(self, rng: np.random.Generator) -> State:
        """A fresh layout with the robot at rest: hazards do not touch, robot and goals keep clear of them, and no goal is
        drawn within reach of the one before."""
        reach = self.half_size - self.goal_radius
        hazards: list[list[float]] = []
        for _ in range(self.hazards):
            hazards.append(self._spot(rng, reach, hazards, 2.2 * self.hazard_radius))
        spots = [self._spot(rng, reach, hazards, 2 * self.hazard_radius)]
        for _ in range(self.goals):
            clear = self.hazard_radius + self.goal_radius
            spots.append(self._spot(rng, reach, hazards, clear, spots[-1], self.half_size / 2))
        return State(
            robot=np.array([*spots[0], 0.0, 0.0], np.float32),
            goals=np.array(spots[1:], np.float32),
            reached=np.array(0, np.int32),
            hazards=np.array(hazards, np.float32).reshape(-1, 2),
        )

    def _spot(
        self,
        rng: np.random.Generator,
        reach: float,
        hazards: list[list[float]],
        clear: float,
        other: list[float] | None = None,
        apart: float = 0.0,
    ) -> list[float]:
        """A uniform position at least `clear` away from hazard centres and `apart` from another one (m)."""
        for _ in range(1000):
            spot = rng.uniform(-reach, reach, 2).tolist()
            far = other is None or math.dist(spot, other) > apart
            if far and all(math.dist(spot, hazard) > clear for hazard in hazards):
                return spot
        raise UserError(f"{self.hazards} hazards of radius {self.hazard_radius} do not fit; use fewer or smaller ones")


def _course(x: float, y: float) -> float:
    """Direction of a velocity (rad); NaN at rest."""
    return math.atan2(y, x) if math.hypot(x, y) > 1e-6 else math.nan


def _length(vector: Any) -> Any:
    return jnp.sqrt((vector**2).sum(axis=-1))


CROWDED = PointWorld(hazards=6, hazard_radius=0.25, goal_radius=0.2, acceleration=2.0, damping=0.9)
"""A heavy robot among six large hazards, for hand-written drivers: what is in the way must be foreseen."""


class PointWorldEnv(gym.Env[np.ndarray, np.ndarray]):
    """Gymnasium environment. Observation `[6 + 3·sensed]`: velocity (m/s), goal − position (m), proximity of the walls
    along x and y; then, nearest hazard first, its proximity along x and y and in all. Proximity is 0 beyond the sensor's
    range, 1 at an edge, more beyond it. Action `[2]` in [−1, 1]: push along x and y."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 20}  # noqa: RUF012  (Gymnasium's own attribute)
    summary = "A noisy double integrator seeks goals among round hazards; its safety probabilities are known."
    action_names = ("push along x", "push along y")

    def __init__(self, world: PointWorld | None = None, spec: str = "!hazard", render_mode: str | None = None) -> None:
        self.render_mode = check_render_mode(render_mode)
        self.world = PointWorld() if world is None else world
        if not isinstance(self.world, PointWorld):
            raise UserError(f"world must be a PointWorld, got {world!r}")
        self.atoms = ATOMS
        self.psi: Formula = parse_formula(spec, ATOMS)
        every = itertools.product((False, True), repeat=len(ATOMS))
        self._costs = {labels: float(not self.psi.holds(np.array(labels), ATOMS)) for labels in every}
        reach = np.float32(self.world.reach)
        self.observation_space = gym.spaces.Box(
            -reach, reach, (6 + 3 * min(self.world.sensed, self.world.hazards),), np.float32
        )
        self.action_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.mirror = _mirror(min(self.world.sensed, self.world.hazards))
        self.state = self.world.sample(np.random.default_rng(0))
        self.steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        """A new layout."""
        super().reset(seed=seed, options=options)
        self.state = self.world.sample(self.np_random)
        self.steps = 0
        return self._look()

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        """One control step; never terminates, truncates after `episode_steps`."""
        try:
            array = np.asarray(action, dtype=np.float32)
        except (TypeError, ValueError):
            array = np.zeros(0, np.float32)
        pushes: list[float] = array.ravel().tolist()
        if array.shape != (2,) or not all(map(math.isfinite, pushes)):
            raise UserError(f"an action of point_world is two finite numbers, got {action}")
        reward = self._move(pushes, self.np_random.standard_normal(2).tolist())
        self.steps += 1
        observation, info = self._look()
        return observation, reward, False, self.steps >= self.world.episode_steps, info

    def get_state(self) -> Snapshot:
        """All that the future depends on, random numbers included, as arrays."""
        return {
            **{name: np.array(part) for name, part in self.state._asdict().items()},
            "steps": np.array(self.steps),
            "rng": generator_to_array(self.np_random),
        }

    def set_state(self, snapshot: Snapshot) -> None:
        """Continue from a snapshot, bit by bit as the original would."""
        check_state("PointWorld", snapshot, (*State._fields, "steps", "rng"))
        self.state = State(*(np.array(snapshot[name]) for name in State._fields))
        self.steps = int(snapshot["steps"])
        self.np_random = generator_from_array(snapshot["rng"])

    def render(self) -> Any:
        """The arena from above, uint8 `[256, 256, 3]`: hazards blue, goal green, robot red."""
        if self.render_mode is None:
            return None
        axis = np.linspace(-self.world.half_size, self.world.half_size, 256)
        places = np.stack(np.meshgrid(axis, axis[::-1]), axis=-1)
        picture = np.full((256, 256, 3), 245, np.uint8)
        discs = [(hazard, self.world.hazard_radius, (157, 184, 232)) for hazard in self.state.hazards]
        discs += [
            (self.state.goal, self.world.goal_radius, (143, 207, 133)),
            (self.state.robot[:2], 0.05, (214, 40, 57)),
        ]
        for centre, radius, colour in discs:
            picture[np.linalg.norm(places - centre, axis=-1) <= radius] = colour
        return picture

    def map_scene(self) -> Scene:
        """The arena; the robot's heading is where it moves."""
        x, y, *velocity = self.state.robot.tolist()
        hazards = self.state.hazards.tolist()
        return self._drawn((x, y, _course(*velocity)), self._goal(), hazards)

    def map_imagined(self, now: Scene, observation: Any) -> Scene:
        """The robot where the way to the present goal puts it, and the hazard that it senses there."""
        goal = now.items[0, 1:3].tolist()
        velocity, ahead, _, nearest = np.split(np.asarray(observation, float)[:9], [2, 4, 6])
        x, y = np.subtract(goal, ahead).tolist()
        return self._drawn((x, y, _course(*velocity)), goal, self._sensed((x, y), nearest))

    def _drawn(self, robot: tuple[float, float, float], goal: list[float], hazards: list[list[float]]) -> Scene:
        things = [("goal", goal, self.world.goal_radius)]
        things += [("hazard", spot, self.world.hazard_radius) for spot in hazards]
        return scene(robot, things, self.world.half_size)

    def _sensed(self, place: tuple[float, float], readings: np.ndarray) -> list[list[float]]:
        """Where a hazard stands for these readings of its sensor, if they tell of any."""
        if readings.size < 3 or readings[2] <= 0.02:
            return []
        gap = (1 - float(readings[2])) * self.world.sensor_range + self.world.hazard_radius
        course = readings[:2] / max(float(np.hypot(*readings[:2])), 1e-9)
        return [[place[0] + gap * float(course[0]), place[1] + gap * float(course[1])]]

    def _move(self, pushes: list[float], shocks: list[float]) -> float:
        """`PointWorld.advance` in plain numbers: takes the step, returns the reward."""
        world, (robot, goals, reached, hazards) = self.world, self.state
        x, y, *velocity = robot.tolist()
        place, goal = [x, y], self._goal()
        before = math.dist(goal, place)
        for axis in (0, 1):
            drive = world.dt * world.acceleration * min(max(pushes[axis], -1.0), 1.0)
            velocity[axis] = world.damping * velocity[axis] + drive + world.noise[axis] * shocks[axis]
            place[axis] += world.dt * velocity[axis]
        after = math.dist(goal, place)
        arrived = after <= world.goal_radius
        self.state = State(np.array(place + velocity, np.float32), goals, reached + np.int32(arrived), hazards)
        return before - after + arrived

    def _look(self) -> tuple[np.ndarray, dict[str, Any]]:
        """Observation and info of the current state."""
        x, y, *velocity = self.state.robot.tolist()
        goal_x, goal_y = self._goal()
        edge = self.world.half_size
        seen = [*velocity, goal_x - x, goal_y - y, *(math.copysign(self._nearness(edge - abs(p)), p) for p in (x, y))]
        hazards = sorted([(math.dist((x, y), spot), spot[0] - x, spot[1] - y) for spot in self.state.hazards.tolist()])
        for distance, ahead, aside in hazards[: self.world.sensed]:
            nearness = self._nearness(distance - self.world.hazard_radius)
            share = nearness / max(distance, 1e-9)
            seen += ahead * share, aside * share, nearness
        labels = bool(hazards) and hazards[0][0] <= self.world.hazard_radius, max(abs(x), abs(y)) > self.world.half_size
        return np.array(seen, np.float32), {"labels": np.array(labels), "cost": self._costs[labels]}

    def _nearness(self, gap: float) -> float:
        """Proximity of an edge this far away (m)."""
        return max(0.0, 1 - gap / self.world.sensor_range)

    def _goal(self) -> list[float]:
        return self.state.goals[int(self.state.reached) % len(self.state.goals)].tolist()


def _mirror(sensed: int) -> Mirror:
    """x and −x exchanged, with so many hazards in the observation: all that is measured along x changes sign."""
    vector = (-1.0, 1.0) * 3 + (-1.0, 1.0, 1.0) * sensed
    return Mirror((0, 1), (-1.0, 1.0), tuple(range(len(vector))), vector)


def seek_goal(_key: Key[Array, ""], state: State) -> Array:
    """A reckless policy: straight to the goal, whatever lies between."""
    return jnp.clip(4.0 * (state.goal - state.robot[:2]) - 1.0 * state.robot[2:], -1.0, 1.0)


def keep_clear(_key: Key[Array, ""], state: State) -> Array:
    """A backup policy: slowly along the heading nearest to the goal's that stays clear of hazards, and away from near ones."""
    position, velocity = state.robot[:2], state.robot[2:]
    ahead = _unit(state.goal - position)
    if not state.hazards.shape[0]:
        return jnp.clip(4.0 * (0.6 * ahead - velocity), -1.0, 1.0)
    angles = jnp.linspace(0, 2 * jnp.pi, 32, endpoint=False)
    headings = jnp.stack([jnp.cos(angles), jnp.sin(angles)], axis=-1)
    reach = jnp.array([0.2, 0.4, 0.6, 0.8])
    probes = position[None, None] + reach[None, :, None] * headings[:, None]
    gaps = probes[:, :, None] - state.hazards[None, None]
    clearance = jnp.sqrt((gaps**2).sum(axis=-1)).min(axis=(1, 2))
    progress = (headings * ahead[None]).sum(axis=-1)
    # Among clear headings the most progress; if none is clear, the clearest.
    course = headings[jnp.argmax(jnp.where(clearance > 0.36, 10 + progress, clearance))]
    away = position[None] - state.hazards
    distance = jnp.sqrt((away**2).sum(axis=-1, keepdims=True) + 1e-12)
    push = (jnp.exp(-(distance - 0.3) / 0.05) * away / distance).sum(axis=0)
    return jnp.clip(4.0 * (0.6 * course + push - velocity), -1.0, 1.0)


def _unit(vector: Array) -> Array:
    return vector / jnp.sqrt((vector**2).sum() + 1e-12)
