"""N copies of a task advanced together: physics, goals, reward and labels, held as arrays with a leading axis n.

The single environment is the case n = 1, the vector environment the case n > 1; both are thin shells over this.
Positions in m, velocities in m/s and rad/s, world coordinates unless said otherwise.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import mujoco
import numpy as np
from jaxtyping import Bool, Float, Int

from ambs.envs.safety_gym import lidar, sleeping
from ambs.envs.safety_gym.layout import sample_goal, sample_layout
from ambs.envs.safety_gym.robots import FRAME_SKIP, VASE_HEIGHT, build_model
from ambs.envs.safety_gym.tasks import ATOMS, GOAL_RADIUS, HAZARD_RADIUS, MAX_FRAMES, VASE_SPEED, Task
from ambs.envs.snapshot import check_fields, generator_from_array, generator_to_array
from ambs.errors import UserError

SENSORS = 12
VECTOR_SIZE = SENSORS + 3 * lidar.BINS
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

        `collision` says what the atom of that name means: "contact" of robot and vase, or the "stock" constraint's
        contact or moving vase. Without `accelerations` the accelerometer reads nonsense, and a frame is cheaper.
        """
        if collision not in ("contact", "stock"):
            raise UserError(f'collision must be "contact" or "stock", got {collision!r}')
        for name, value in (("frame_skip", frame_skip), ("max_frames", max_frames), ("threads", threads), ("num", num)):
            if value < 1:
                raise UserError(f"{name} must be at least 1, got {value}")
        self.task, self.num, self.collision = task, num, collision
        self.frame_skip, self.max_frames = frame_skip, max_frames
        self.model = model = build_model(task.robot, task.vases)
        self._accelerations = accelerations
        self._data = [mujoco.MjData(model) for _ in range(num)]
        # A view is looked up once here, not once per frame and field.
        self._views = [(d.qpos, d.qvel, d.qacc, d.xpos, d.xmat.reshape(-1, 3, 3), d.ctrl) for d in self._data]
        self._body_of_geom = model.body_rootid[model.geom_bodyid]
        self._robot_body = model.body("robot").id
        self._first_vase = model.nbody - task.vases
        self._chunks = [chunk for chunk in np.array_split(np.arange(num), min(threads, num)) if len(chunk)]
        self._pool = ThreadPoolExecutor(len(self._chunks)) if len(self._chunks) > 1 else None
        self._rngs = [np.random.default_rng(0) for _ in range(num)]

        self.qvel: Float[np.ndarray, "n v"] = np.zeros((num, model.nv))
        self.qacc: Float[np.ndarray, "n v"] = np.zeros((num, model.nv))
        self.robot_pos: Float[np.ndarray, "n 3"] = np.zeros((num, 3))
        self.robot_mat: Float[np.ndarray, "n 3 3"] = np.tile(np.eye(3), (num, 1, 1))
        self.vase_pos: Float[np.ndarray, "n vases 3"] = np.zeros((num, task.vases, 3))
        self.vase_mat: Float[np.ndarray, "n vases 3 3"] = np.zeros((num, task.vases, 3, 3))
        self.touching: Bool[np.ndarray, "n"] = np.zeros(num, bool)
        self.goal: Float[np.ndarray, "n 2"] = np.zeros((num, 2))
        self.hazards: Float[np.ndarray, "n hazards 2"] = np.zeros((num, task.hazards, 2))
        self.distance: Float[np.ndarray, "n"] = np.zeros(num)
        self.frames: Int[np.ndarray, "n"] = np.zeros(num, np.int64)

    def reset(self, index: int, rng: np.random.Generator) -> None:
        """Start a new episode in one world; its layout and all its later goals are drawn from `rng`."""
        layout = sample_layout(self.task, rng)
        robot = self.task.robot
        qpos = np.zeros(self.model.nq)
        qpos[: robot.nq] = robot.place(layout.agent, layout.agent_yaw)
        vases = qpos[robot.nq :].reshape(-1, 7)
        vases[:, :2], vases[:, 2] = layout.vases, VASE_HEIGHT
        vases[:, 3], vases[:, 6] = np.cos(layout.vase_yaws / 2), np.sin(layout.vase_yaws / 2)
        self._rngs[index] = rng
        self.place(index, qpos, np.zeros(self.model.nv), layout.goal, layout.hazards)

    def place(
        self,
        index: int,
        qpos: Float[np.ndarray, "q"],
        qvel: Float[np.ndarray, "v"],
        goal: Float[np.ndarray, "2"],
        hazards: Float[np.ndarray, "hazards 2"],
        keep_warm_start: bool = False,
    ) -> None:
        """Put one world into a given state, as the first of an episode.

        With `keep_warm_start` the constraint solver begins where its last frame ended, not from nothing.
        """
        data = self._data[index]
        warm_start = data.qacc_warmstart * keep_warm_start
        mujoco.mj_resetData(self.model, data)
        data.qpos[:], data.qvel[:], data.qacc_warmstart[:] = qpos, qvel, warm_start
        self._forward(data)
        self._read(index)
        self.goal[index], self.hazards[index], self.frames[index] = goal, hazards, 0
        self.distance[index] = np.linalg.norm(self.robot_pos[index, :2] - goal)

    def advance(self, actions: Float[np.ndarray, "n 2"], live: Bool[np.ndarray, "n"] | None = None) -> Frame:
        """Advance the `live` worlds (all, by default) by one frame; actions are finite and are clipped to [−1, 1]."""
        live = np.ones(self.num, bool) if live is None else live
        faults = self._simulate(np.clip(actions, -1.0, 1.0), live)
        sound = live.copy()
        sound[list(faults)] = False
        self.frames += live
        distance = np.linalg.norm(self.robot_pos[:, :2] - self.goal, axis=-1)
        reached = sound & (distance <= GOAL_RADIUS)
        reward = np.where(sound, self.distance - distance + reached, 0.0)
        labels = self.labels() & sound[:, None]
        np.copyto(self.distance, distance, where=sound)
        terminated = np.zeros(self.num, bool)
        for index in np.flatnonzero(reached):
            terminated[index] = not self._move_goal(int(index))
        truncated = live & ((self.frames >= self.max_frames) | ~sound)
        return Frame(reward, labels, reached, terminated, truncated, faults)

    def labels(self) -> Bool[np.ndarray, "n atoms"]:
        """Labels of the current states, in the order of `ATOMS`."""
        labels = np.zeros((self.num, len(ATOMS)), bool)
        to_hazards = np.linalg.norm(self.robot_pos[:, None, :2] - self.hazards, axis=-1)
        vase_velocity = self.qvel[:, self.task.robot.nv :].reshape(self.num, -1, 6)[..., :3]
        labels[:, 0] = (to_hazards <= HAZARD_RADIUS).any(-1)
        labels[:, 1] = self.touching
        labels[:, 2] = (np.linalg.norm(vase_velocity, axis=-1) > VASE_SPEED).any(-1)
        if self.collision == "stock":
            labels[:, 1] |= labels[:, 2]
        return labels

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

    def vectors(self) -> Float[np.ndarray, "n 60"]:
        """Sensors (12), then closeness of the goal, the hazards and the vases (16 each)."""
        kinds = (self.goal[:, None], self.hazards, self.vase_pos[..., :2])
        return np.concatenate([self.sensors(), lidar.closeness(self.robot_pos, self.robot_mat, kinds)], axis=-1)

    def poses(self) -> tuple[np.ndarray, ...]:
        """What a camera needs: robot_pos, robot_mat, goal, hazards, vase_pos, vase_mat."""
        return self.robot_pos, self.robot_mat, self.goal, self.hazards, self.vase_pos, self.vase_mat

    def get_state(self) -> dict[str, np.ndarray]:
        """Everything the future depends on, as arrays with a leading axis n."""
        physics = np.zeros((self.num, mujoco.mj_stateSize(self.model, _STATE)))
        for row, data in zip(physics, self._data, strict=True):
            mujoco.mj_getState(self.model, data, row, _STATE)
        return {
            "physics": physics,
            **sleeping.get_state(self._data),
            "goal": self.goal.copy(),
            "hazards": self.hazards.copy(),
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
        self.goal[:], self.hazards[:] = state["goal"], state["hazards"]
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
        self.vase_pos[index], self.vase_mat[index] = xpos[self._first_vase :], xmat[self._first_vase :]
        self.touching[index] = self._robot_touches_vase(data)

    def _robot_touches_vase(self, data: mujoco.MjData) -> bool:
        # Bodies are numbered floor 0, robot, vases; a pair with the floor in it has product 0.
        if data.ncon == 0 or self.task.vases == 0:
            return False
        pairs = self._body_of_geom[data.contact.geom]
        return bool(((pairs.min(-1) == self._robot_body) & (pairs.max(-1) >= self._first_vase)).any())

    def _move_goal(self, index: int) -> bool:
        place = self.robot_pos[index, :2]
        vases = self.vase_pos[index, :, :2]
        goal = sample_goal(self.task, place, self.hazards[index], vases, self._rngs[index])
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
