"""N copies of a task advanced together: physics, goals, reward and labels, held as arrays with a leading axis n.

The single environment is the case n = 1, the vector environment the case n > 1; both are thin shells over this.
Positions in m, velocities in m/s and rad/s, world coordinates unless said otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Bool, Float, Int

from ambs.config.checks import is_among, whole
from ambs.envs.safety_gym import lidar, sleeping
from ambs.envs.safety_gym.layout import sample_goal, sample_layout
from ambs.envs.safety_gym.objects import HAZARD, Kind, drawn
from ambs.envs.safety_gym.robots import FRAME_SKIP, build_model
from ambs.envs.safety_gym.tasks import MAX_FRAMES, Task
from ambs.envs.snapshot import check_fields, generator_from_array, generator_to_array
from ambs.errors import UserError, extras

with extras():
    import mujoco

SENSORS = 12
GRAVITY = np.array([0.0, 0.0, 9.81])
MAGNETIC_FIELD = np.array([0.0, -0.5, 0.0])

_STATE = int(mujoco.mjtState.mjSTATE_INTEGRATION)


@dataclass(frozen=True)
class Frame:
    """What one frame did to each of the n worlds; rows of worlds that did not take part are zero."""

    reward: Float[np.ndarray, "n"]
    labels: Bool[np.ndarray, "n atoms"]
    """Labels of the state reached, judged before the goal moves."""
    reached: Bool[np.ndarray, "n"]
    """Whether the goal was reached, and so has moved."""
    terminated: Bool[np.ndarray, "n"]
    """The goal was reached and there was no room for the next one."""
    truncated: Bool[np.ndarray, "n"]
    """The time is up, or the world is faulty."""
    faults: dict[int, str] = field(default_factory=dict)
    """Worlds whose physics went wrong, and how; their arrays still show the last sound state."""


class Worlds:
    """The worlds and their current state; read the arrays, change them only through the methods."""

    def __init__(
        self,
        task: Task,
        num: int = 1,
        *,
        collision: str = "contact",
        frame_skip: int = FRAME_SKIP,
        max_frames: int = MAX_FRAMES,
        accelerations: bool = True,
        threads: int = 1,
    ) -> None:
        """Make `num` worlds, all at rest in a heap until they are reset.

        `collision` says what that atom, and any of touching what can be moved, means: "contact" of robot and vase, or the
        "stock" constraint's contact or moving vase. Without `accelerations` the accelerometer reads nonsense, and a frame is
        cheaper.
        """
        if not is_among(collision, ("contact", "stock")):
            raise UserError(f'collision must be "contact" or "stock", got {collision!r}')
        for name, value in (("frame_skip", frame_skip), ("max_frames", max_frames), ("threads", threads), ("num", num)):
            whole(name, value, 1)
        self.task, self.num, self.collision = task, num, collision
        self.frame_skip, self.max_frames = frame_skip, max_frames
        self.model = model = build_model(task.robot, task.things)
        self._accelerations = accelerations
        self._data = [mujoco.MjData(model) for _ in range(num)]
        # A view is looked up once here, not once per frame and field.
        self._views = [(d.qpos, d.qvel, d.qacc, d.xpos, d.xmat.reshape(-1, 3, 3), d.ctrl) for d in self._data]
        self._body_of_geom = model.body_rootid[model.geom_bodyid]
        self._robot_body = model.body("robot").id
        solid = [index for index, (kind, count) in enumerate(task.things) for _ in range(count) if kind.body != "none"]
        self._kind_of_solid = np.array(solid, int)
        self._first_solid = model.nbody - len(solid)
        ends = [int(np.searchsorted(self._kind_of_solid, index)) for index in range(len(task.things) + 1)]
        self._solids = {kind.name: slice(*ends[index : index + 2]) for index, kind in enumerate(task.kinds)}
        self._chunks = [chunk for chunk in np.array_split(np.arange(num), min(threads, num)) if len(chunk)]
        self._pool = ThreadPoolExecutor(len(self._chunks)) if len(self._chunks) > 1 else None
        self._rngs = [np.random.default_rng(0) for _ in range(num)]

        self.qvel: Float[np.ndarray, "n v"] = np.zeros((num, model.nv))
        self.qacc: Float[np.ndarray, "n v"] = np.zeros((num, model.nv))
        self.robot_pos: Float[np.ndarray, "n 3"] = np.zeros((num, 3))
        self.robot_mat: Float[np.ndarray, "n 3 3"] = np.tile(np.eye(3), (num, 1, 1))
        self.solid_pos: Float[np.ndarray, "n solids 3"] = np.zeros((num, len(solid), 3))
        self.solid_mat: Float[np.ndarray, "n solids 3 3"] = np.zeros((num, len(solid), 3, 3))
        self.touched: Bool[np.ndarray, "n kinds"] = np.zeros((num, len(task.things)), bool)
        self.goal: Float[np.ndarray, "n 2"] = np.zeros((num, 2))
        self._spots: dict[str, Float[np.ndarray, "n things 2"]] = {
            kind.name: np.zeros((num, count, 2)) for kind, count in task.things if kind.body == "none"
        }
        self.distance: Float[np.ndarray, "n"] = np.zeros(num)
        self.frames: Int[np.ndarray, "n"] = np.zeros(num, np.int64)

    def reset(self, index: int, rng: np.random.Generator) -> None:
        """Start a new episode in one world; its layout and all its later goals are drawn from `rng`."""
        layout = sample_layout(self.task, rng)
        robot = self.task.robot
        qpos = np.zeros(self.model.nq)
        qpos[: robot.nq] = robot.place(layout.agent, layout.agent_yaw)
        free, start = qpos[robot.nq :].reshape(-1, 7), 0
        for kind, count in self.task.things:
            if kind.body == "free":
                bodies, yaws, start = free[start : start + count], layout.yaws[kind.name], start + count
                bodies[:, :2], bodies[:, 2] = layout.spots[kind.name], kind.height
                bodies[:, 3], bodies[:, 6] = np.cos(yaws / 2), np.sin(yaws / 2)
        self._rngs[index] = rng
        self.place(index, qpos, np.zeros(self.model.nv), layout.goal, layout.spots)

    def place(
        self,
        index: int,
        qpos: Float[np.ndarray, "q"],
        qvel: Float[np.ndarray, "v"],
        goal: Float[np.ndarray, "2"],
        spots: Mapping[str, Float[np.ndarray, "_ 2"]],
        keep_warm_start: bool = False,
    ) -> None:
        """Put one world into a given state, as the first of an episode.

        `spots` are, by kind, the places of what is not in `qpos`: things without a body, and immovable ones. With
        `keep_warm_start` the constraint solver begins where its last frame ended, not from nothing.
        """
        data = self._data[index]
        warm_start = data.qacc_warmstart * keep_warm_start
        mujoco.mj_resetData(self.model, data)
        data.qpos[:], data.qvel[:], data.qacc_warmstart[:] = qpos, qvel, warm_start
        fixed = [spots[kind.name] for kind in self.task.kinds if kind.body == "fixed"]
        if fixed:
            data.mocap_pos[:, :2] = np.concatenate(fixed)
        for name, places in self._spots.items():
            places[index] = spots[name]
        self._forward(data)
        self._read(index)
        self.goal[index], self.frames[index] = goal, 0
        self.distance[index] = np.linalg.norm(self.robot_pos[index, :2] - goal)

    def advance(self, actions: Float[np.ndarray, "n 2"], live: Bool[np.ndarray, "n"] | None = None) -> Frame:
        """Advance the `live` worlds (all, by default) by one frame; actions are finite and are clipped to [−1, 1]."""
        live = np.ones(self.num, bool) if live is None else live
        faults = self._simulate(np.clip(actions, -1.0, 1.0), live)
        sound = live.copy()
        sound[list(faults)] = False
        self.frames += live
        distance = np.linalg.norm(self.robot_pos[:, :2] - self.goal, axis=-1)
        reached = sound & (distance <= self.task.goal.radius)
        reward = np.where(sound, self.distance - distance + reached, 0.0)
        labels = self.labels() & sound[:, None]
        np.copyto(self.distance, distance, where=sound)
        terminated = np.zeros(self.num, bool)
        for index in np.flatnonzero(reached):
            terminated[index] = not self._move_goal(int(index))
        truncated = live & ((self.frames >= self.max_frames) | ~sound)
        return Frame(reward, labels, reached, terminated, truncated, faults)

    def labels(self) -> Bool[np.ndarray, "n atoms"]:
        """Labels of the current states, in the order of the task's atoms."""
        held = {name: np.zeros(self.num, bool) for name in self.task.atoms.names}
        velocity = self.qvel[:, self.task.robot.nv :].reshape(self.num, -1, 6)[..., :3]
        start = 0
        for index, (kind, count) in enumerate(self.task.things):
            if kind.inside:
                away = np.linalg.norm(self.robot_pos[:, None, :2] - self.spots(kind), axis=-1)
                held[kind.inside] |= (away <= kind.radius).any(-1)
            if kind.touched:
                held[kind.touched] |= self.touched[:, index]
            if kind.moving:
                speed = np.linalg.norm(velocity[:, start : start + count], axis=-1)
                held[kind.moving] |= (speed > kind.speed).any(-1)
                if kind.touched and self.collision == "stock":
                    held[kind.touched] |= held[kind.moving]
            start += count * (kind.body == "free")
        return np.stack(list(held.values()), axis=-1)

    @property
    def touching(self) -> Bool[np.ndarray, "n"]:
        """Whether the robot touches anything but the floor."""
        return np.asarray(self.touched.any(-1))

    @property
    def hazards(self) -> Float[np.ndarray, "n hazards 2"]:
        """Centres of the hazards; what is written here moves them."""
        return self._spots[HAZARD.name]

    def spots(self, kind: Kind) -> Float[np.ndarray, "n things 2"]:
        """Where all things of a kind are now."""
        return self._spots[kind.name] if kind.body == "none" else self.pose(kind)[0][..., :2]

    def pose(self, kind: Kind) -> tuple[Float[np.ndarray, "n things 3"], Float[np.ndarray, "n things 3 3"]]:
        """Centres of all things of a kind and, as columns, their axes."""
        if kind.body != "none":
            mine = self._solids[kind.name]
            return self.solid_pos[:, mine], self.solid_mat[:, mine]
        flat = self._spots[kind.name]
        centres = np.concatenate([flat, np.full((*flat.shape[:2], 1), kind.height)], axis=-1)
        return centres, np.tile(np.eye(3), (*flat.shape[:2], 1, 1))

    def sensors(self) -> Float[np.ndarray, "n 12"]:
        """Accelerometer, velocimeter, gyro and magnetometer (m/s², m/s, rad/s, 1) in the robot's frame, 3 each.

        They are computed here for all worlds at once, since MuJoCo's own are evaluated in every simulator step.
        """
        if self.task.robot.free:
            linear, linear_rate, turn = self.qvel[:, :3], self.qacc[:, :3], self.qvel[:, 3:6]
        else:
            flat = np.array([1.0, 1.0, 0.0])
            linear, linear_rate, turn = self.qvel[:, :3] * flat, self.qacc[:, :3] * flat, self.qvel[:, :3] * (1 - flat)
        in_world = np.stack([linear_rate + GRAVITY, linear, np.broadcast_to(MAGNETIC_FIELD, linear.shape)], axis=1)
        in_robot = in_world @ self.robot_mat
        return np.concatenate([in_robot[:, 0], in_robot[:, 1], turn, in_robot[:, 2]], axis=-1)

    def vectors(self) -> Float[np.ndarray, "n values"]:
        """Sensors (12), then closeness of the goal and of each kind of thing that the lidar knows (16 each)."""
        kinds = [self.goal[:, None], *(self.spots(kind) for kind in self.task.kinds if kind.lidar)]
        return np.concatenate([self.sensors(), lidar.closeness(self.robot_pos, self.robot_mat, kinds)], axis=-1)

    def poses(self) -> tuple[np.ndarray, ...]:
        """What a camera of these kinds needs: robot_pos, robot_mat, goal, discs, cube_pos, cube_mat, others' pos and mat."""
        kinds = drawn(self.task.kinds)
        none = np.zeros((self.num, 0, 3))
        discs = none[..., :2] if kinds.discs is None else self.spots(kinds.discs)
        cubes = (none, np.zeros((self.num, 0, 3, 3))) if kinds.cubes is None else self.pose(kinds.cubes)
        others = (array for kind in kinds.others for array in self.pose(kind))
        return self.robot_pos, self.robot_mat, self.goal, discs, *cubes, *others

    def get_state(self) -> dict[str, np.ndarray]:
        """Everything the future depends on, as arrays with a leading axis n."""
        physics = np.zeros((self.num, mujoco.mj_stateSize(self.model, _STATE)))
        for row, data in zip(physics, self._data, strict=True):
            mujoco.mj_getState(self.model, data, row, _STATE)
        return {
            "physics": physics,
            **sleeping.get_state(self._data),
            "goal": self.goal.copy(),
            **{kind.plural: self._spots[kind.name].copy() for kind in self.task.kinds if kind.name in self._spots},
            "distance": self.distance.copy(),
            "frames": self.frames.copy(),
            "rng": np.stack([generator_to_array(rng) for rng in self._rngs]),
        }

    def set_state(self, state: dict[str, np.ndarray]) -> None:
        """Continue from a state got from worlds of the same task and number, bit by bit as those would have."""
        check_fields(state, self.get_state(), self.task.name)
        for index, data in enumerate(self._data):
            mujoco.mj_resetData(self.model, data)
            mujoco.mj_setState(self.model, data, state["physics"][index], _STATE)
            mujoco.mj_forward(self.model, data)
            sleeping.set_state(data, state, index)
            # Forces and positions of sleeping bodies are not computed again, so they are settled before.
            mujoco.mj_setState(self.model, data, state["physics"][index], _STATE)
            self._forward(data)
            self._read(index)
            self._rngs[index] = generator_from_array(state["rng"][index])
        for kind in self.task.kinds:
            if kind.name in self._spots:
                self._spots[kind.name][:] = state[kind.plural]
        self.goal[:] = state["goal"]
        self.distance[:], self.frames[:] = state["distance"], state["frames"]

    def rng(self, index: int) -> np.random.Generator:
        """The generator that one world's layouts and goals come from."""
        return self._rngs[index]

    def close(self) -> None:
        """Stop the threads."""
        if self._pool is not None:
            self._pool.shutdown()

    def _simulate(self, actions: Float[np.ndarray, "n 2"], live: Bool[np.ndarray, "n"]) -> dict[int, str]:
        def run(chunk: np.ndarray) -> dict[int, str]:
            faults = ((index, self._simulate_one(index, actions[index])) for index in chunk.tolist() if live[index])
            return {index: fault for index, fault in faults if fault}

        parts = self._pool.map(run, self._chunks) if self._pool else map(run, self._chunks)
        return {index: fault for part in parts for index, fault in part.items()}

    def _simulate_one(self, index: int, action: Float[np.ndarray, "2"]) -> str:
        """Advance one world and read it off; returns what went wrong, or nothing."""
        data = self._data[index]
        qpos, qvel, _, _, _, ctrl = self._views[index]
        ctrl[:] = action
        try:
            mujoco.mj_step(self.model, data, self.frame_skip)
            if self._accelerations:
                self._forward(data)
            else:
                mujoco.mj_fwdPosition(self.model, data)
            fault = _warnings(data)
            # The sum is finite iff every term is, short of an overflow, which is a fault too.
            if not fault and not np.isfinite(qpos.sum() + qvel.sum()):
                fault = "the state is not finite"
        except mujoco.FatalError as error:
            fault = f"MuJoCo stopped: {error}"
        if fault:
            # A broken simulation must neither be saved nor drawn; until its reset the world is a heap again.
            mujoco.mj_resetData(self.model, data)
        else:
            self._read(index)
        return fault

    def _forward(self, data: mujoco.MjData) -> None:
        """Compute all that follows from the state, and leave the state alone: some MuJoCos move the warm start."""
        warm_start = data.qacc_warmstart.copy()
        mujoco.mj_forward(self.model, data)
        data.qacc_warmstart[:] = warm_start

    def _read(self, index: int) -> None:
        data, (_, qvel, qacc, xpos, xmat, _) = self._data[index], self._views[index]
        self.qvel[index], self.qacc[index] = qvel, qacc
        self.robot_pos[index], self.robot_mat[index] = xpos[self._robot_body], xmat[self._robot_body]
        self.solid_pos[index], self.solid_mat[index] = xpos[self._first_solid :], xmat[self._first_solid :]
        self.touched[index] = False
        # Bodies are numbered floor 0, robot, things.
        if data.ncon and len(self._kind_of_solid):
            pairs = self._body_of_geom[data.contact.geom]
            others = pairs.max(-1)[pairs.min(-1) == self._robot_body] - self._first_solid
            self.touched[index, self._kind_of_solid[others[others >= 0]]] = True

    def _move_goal(self, index: int) -> bool:
        place = self.robot_pos[index, :2]
        spots = {kind.name: self.spots(kind)[index] for kind in self.task.kinds}
        goal = sample_goal(self.task, place, spots, self._rngs[index])
        if goal is None:
            return False
        self.goal[index] = goal
        self.distance[index] = np.linalg.norm(place - goal)
        return True


def _warnings(data: mujoco.MjData) -> str:
    numbers = data.warning.number
    if not numbers.any():
        return ""
    kinds = [str(mujoco.mjtWarning(kind).name).removeprefix("mjWARN_") for kind in np.flatnonzero(numbers)]
    return f"MuJoCo warned of {', '.join(kinds)}"
