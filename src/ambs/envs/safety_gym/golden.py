"""Replay recordings of the original environments, and say how far ours are from them.

From every recorded state one frame is simulated with the recorded action. A recording holds, for each episode and step,
`qpos`, `qvel`, `action`, `reward`, `cost_keys` (hazards, vases_contact, vases_velocity), `agent_pos`, `agent_mat`,
`goal`, `vase_pos`, `vase_mat`, `lidar_*`, the four sensors, and `frame` at the steps `frame_step`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ambs.envs.safety_gym import lidar
from ambs.envs.safety_gym.objects import HAZARD, VASE
from ambs.envs.safety_gym.robots import CAR, POINT, Robot
from ambs.envs.safety_gym.tasks import TASKS, Task
from ambs.envs.safety_gym.worlds import MAGNETIC_FIELD, Worlds
from ambs.errors import UserError

POSES = ("agent_pos", "agent_mat", "goal", "vase_pos", "vase_mat")
SENSORS = ("accelerometer", "velocimeter", "gyro", "magnetometer")
LIDARS = ("lidar_goal", "lidar_hazards", "lidar_vases")
REST = ("joint_names", "layout_hazards", "qpos", "qvel", "action", "reward", "cost_keys")


@dataclass(frozen=True)
class Recording:
    """Episodes of one task, the robot's coordinates turned into ours; arrays are [episode, step, ...]."""

    task: Task
    qpos: np.ndarray
    qvel: np.ndarray
    hazards: np.ndarray
    raw: dict[str, np.ndarray]

    @property
    def episodes(self) -> int:
        """How many episodes there are."""
        return len(self.qpos)

    @property
    def steps(self) -> int:
        """How many steps each episode has."""
        return self.raw["action"].shape[1]


def load(path: str | Path) -> Recording:
    """Read a recording; its task is recognised by the robot's joints and the numbers of hazards and vases."""
    try:
        with np.load(path) as archive:
            raw = {name: archive[name] for name in archive.files}
    except Exception as error:  # Damaged archives fail in whatever reads their parts.
        raise UserError(f"{path} cannot be read as a recording (.npz): {error}") from error
    missing = [name for name in (*REST, *POSES, *SENSORS, *LIDARS) if name not in raw]
    if missing:
        raise UserError(f"{path} is not a recording of ours: it has no {', '.join(missing)}")
    robot = CAR if "left" in raw["joint_names"] else POINT
    _check_shapes(path, raw, robot)
    hazards, vases = raw["layout_hazards"].shape[1], raw["vase_pos"].shape[2]
    for task in TASKS.values():
        if (task.robot, task.things) == (robot, ((HAZARD, hazards), (VASE, vases))):
            qpos, qvel = _in_world_coordinates(raw, robot)
            return Recording(task, qpos, qvel, raw["layout_hazards"], raw)
    raise UserError(f"{path} shows {robot.name} with {hazards} hazards and {vases} vases, which is no task of ours")


def replay(recording: Recording, frames: bool = True) -> dict[str, Any]:
    """Compare one-step replays with what was recorded; docs/environments.md explains the fields."""
    worlds = Worlds(recording.task, recording.episodes)
    runs = [_replay_step(worlds, recording, step) for step in range(recording.steps)]
    got = {name: np.stack([run[name] for run in runs], axis=1) for name in runs[0]}
    wanted = recording.raw

    position_error = np.abs(got["position"] - wanted["agent_pos"][:, 1:]).max(-1)
    reward_error = np.abs(got["reward"] - wanted["reward"])
    goal_moves = (wanted["goal"][:, 1:] != wanted["goal"][:, :-1]).any(-1)
    labels = wanted["cost_keys"] > 0
    contact = got["contact_before"] | _contact_after(worlds, recording, got)
    free = ~contact
    sensors = np.concatenate([wanted[name][:, 1:] for name in SENSORS[:3]], axis=-1)
    sensor_error = np.abs(got["sensors"][..., :9] - sensors).max(-1)
    exact = free & (position_error < 1e-6)
    report: dict[str, Any] = {
        "task": recording.task.name,
        "steps": int(contact.size),
        "max_position_error": float(position_error.max()),
        "max_position_error_without_contact": _max(position_error[free]),
        "share_steps_within_1e-6": float((position_error[free] < 1e-6).mean()),
        "share_steps_within_1e-4": float((position_error[free] < 1e-4).mean()),
        "share_contact_steps": float(contact.mean()),
        "max_reward_error": _max(reward_error[free]),
        "max_reward_error_with_contact": _max(reward_error[contact]),
        "goals_reached": int(goal_moves.sum()),
        "goal_mismatches": int((got["reached"] != goal_moves).sum()),
        "hazard_mismatches": int((got["labels"][..., 0] != labels[..., 0]).sum()),
        "vase_label_agreement": None,
        "max_lidar_error": _lidar_error(recording),
        "max_magnetometer_error": _magnetometer_error(recording),
        "max_sensor_error": _max(sensor_error[exact]),
    }
    if "collision" in recording.task.spec.atoms():
        agree = got["labels"][..., 1:] == labels[..., 1:]
        report["vase_label_agreement"] = float(agree.all(-1).mean())
        report["vase_contact_agreement"] = float(agree[..., 0].mean())
        report["vase_moving_agreement"] = float(agree[..., 1].mean())
    if frames and "frame" in wanted:
        report |= compare_frames(recording)
    return report


def shortcomings(report: dict[str, Any]) -> list[str]:
    """What keeps a replay's report from being faithful to the original, a sentence each; none if it is."""
    vases_count = report["vase_label_agreement"] is not None
    at_least = {
        "share_steps_within_1e-6": 0.90 if vases_count else 0.99,
        "share_steps_within_1e-4": 1.0,
        "vase_label_agreement": 0.98,
        "frame_share_within_2": 0.93,
    }
    at_most = {
        "max_reward_error": 1e-4 if vases_count else 1e-6,
        "goal_mismatches": 0,
        "hazard_mismatches": 0,
        "max_lidar_error": 1e-6,
        "max_magnetometer_error": 1e-6,
        "max_sensor_error": 1e-4,
        "frame_mad": 1.0,
    }
    # Written so that a figure that is not a number falls short.
    low = [
        f"{name} is {report[name]:g}, wanted at least {least:g}"
        for name, least in at_least.items()
        if report.get(name) is not None and not report[name] >= least
    ]
    high = [
        f"{name} is {report[name]:g}, wanted at most {most:g}"
        for name, most in at_most.items()
        if report.get(name) is not None and not report[name] <= most
    ]
    return low + high


def remarks(report: dict[str, Any]) -> list[str]:
    """What a reader of the report should know about how much it rests on, a sentence each."""
    found = []
    lost, compared = report.get("frames_lost", 0), report.get("frames", 0)
    if lost:
        found.append(
            f"{lost} of {lost + compared} recorded frames are black and were left out: "
            f"the figures on pictures rest on {compared}"
        )
    if "frames" not in report:
        found.append("the recording has no frames: pictures were not compared")
    if report["vase_label_agreement"] is None:
        found.append("vases cost nothing in this task, so their labels were not recorded and not compared")
    return found


def compare_frames(recording: Recording) -> dict[str, Any]:
    """Render the recorded poses, and compare with the recorded frames in levels of 0–255.

    Frames that are black all over are left out and counted as lost: the robot sees itself in every picture, but the
    original's renderer goes blind when another environment in its process is closed.
    """
    raw = recording.raw
    wanted = raw["frame"].reshape(-1, *raw["frame"].shape[2:])
    seen = wanted.reshape(len(wanted), -1).any(-1)
    report = {"frames": int(seen.sum()), "frames_lost": int((~seen).sum()), "frame_mad": None}
    if not seen.any():
        return {**report, "frame_share_within_2": None}
    import jax.numpy as jnp

    from ambs.envs.safety_gym.camera import Camera

    camera = Camera(recording.task.robot.name, size=wanted.shape[1])
    scene = [jnp.asarray(array[seen], jnp.float32) for array in _scenes(recording)]
    difference = np.abs(np.asarray(camera.render(*scene)).astype(int) - wanted[seen])
    return {
        **report,
        "frame_mad": float(difference.mean()),
        "frame_share_within_2": float((difference <= 2).mean()),
    }


def _check_shapes(path: str | Path, raw: dict[str, np.ndarray], robot: Robot) -> None:
    """Refuse arrays that are not of numbers, or whose sizes do not agree; how many there are of a thing, its own array says."""

    def size(name: str, axis: int) -> int:
        return raw[name].shape[axis] if raw[name].ndim > axis else 0

    episodes, steps, vases = size("action", 0), size("action", 1), size("vase_pos", 2)
    wanted: dict[str, tuple[int, ...]] = {
        "action": (episodes, steps, 2),
        "layout_hazards": (episodes, size("layout_hazards", 1), 2),
        "reward": (episodes, steps),
        "cost_keys": (episodes, steps, 3),
        "qpos": (episodes, steps + 1, robot.nq + 7 * vases),
        "qvel": (episodes, steps + 1, robot.nv + 6 * vases),
        **dict.fromkeys(("agent_pos", "goal", *SENSORS), (episodes, steps + 1, 3)),
        "agent_mat": (episodes, steps + 1, 9),
        "vase_pos": (episodes, steps + 1, vases, 3),
        "vase_mat": (episodes, steps + 1, vases, 9),
        **dict.fromkeys(LIDARS, (episodes, steps + 1, 16)),
    }
    if "frame" in raw:
        if "frame_step" not in raw:
            raise UserError(f"{path} is not a recording of ours: it has frames, and no frame_step")
        shown, pixels = size("frame", 1), size("frame", 2)
        wanted |= {"frame": (episodes, shown, pixels, pixels, 3), "frame_step": (episodes, shown)}
    for name, shape in wanted.items():
        kinds = {"frame": "u", "frame_step": "iu"}.get(name, "fiub")
        if raw[name].shape != shape or not raw[name].size or raw[name].dtype.kind not in kinds:
            told = f"numbers of shape {shape}, none of them 0, got {raw[name].dtype} of shape {raw[name].shape}"
            raise UserError(f"{path} is not a recording of ours: its {name} must be {told}")
    if "frame" in raw and not ((raw["frame_step"] >= 0) & (raw["frame_step"] <= steps)).all():
        raise UserError(f"{path} is not a recording of ours: its frame_step must lie between 0 and {steps}")


def _scenes(recording: Recording) -> tuple[np.ndarray, ...]:
    """What the camera takes, for each recorded frame."""
    raw, vases = recording.raw, recording.task.count(VASE)
    episode = np.arange(recording.episodes)[:, None]
    at = {name: raw[name][episode, raw["frame_step"]] for name in POSES}
    return (
        at["agent_pos"].reshape(-1, 3),
        at["agent_mat"].reshape(-1, 3, 3),
        at["goal"][..., :2].reshape(-1, 2),
        np.repeat(recording.hazards, raw["frame_step"].shape[1], axis=0),
        at["vase_pos"].reshape(-1, vases, 3),
        at["vase_mat"].reshape(-1, vases, 3, 3),
    )


def _in_world_coordinates(raw: dict[str, np.ndarray], robot: Robot) -> tuple[np.ndarray, np.ndarray]:
    """Our `qpos` and `qvel`; the originals measure the Point's from where it started, and along its first heading."""
    qpos, qvel = raw["qpos"].copy(), raw["qvel"].copy()
    if not robot.free:
        start = raw["agent_mat"][:, 0].reshape(-1, 3, 3)
        qpos[..., :2] = raw["agent_pos"][:, :1, :2] + np.einsum("eij,etj->eti", start[:, :2, :2], qpos[..., :2])
        qpos[..., 2] += np.arctan2(start[:, 1, 0], start[:, 0, 0])[:, None]
        qvel[..., :2] = np.einsum("eij,etj->eti", start[:, :2, :2], qvel[..., :2])
    return qpos, qvel


def _replay_step(worlds: Worlds, recording: Recording, step: int) -> dict[str, np.ndarray]:
    place(worlds, recording, step)
    before = worlds.touching.copy()
    frame = worlds.advance(recording.raw["action"][:, step])
    if frame.faults:
        raise UserError(f"step {step} of the recording cannot be replayed: {frame.faults}")
    return {
        "position": worlds.robot_pos.copy(),
        "reward": frame.reward,
        "reached": frame.reached,
        "labels": frame.labels,
        "sensors": worlds.sensors(),
        "contact_before": before,
    }


def place(worlds: Worlds, recording: Recording, step: int) -> None:
    """Put each world into the state that its episode had at that step.

    The solver's warm start is not recorded. The best guess at it is where the replay of the step before ended.
    """
    for episode in range(recording.episodes):
        qpos, qvel = recording.qpos[episode, step], recording.qvel[episode, step]
        goal, spots = recording.raw["goal"][episode, step, :2], {HAZARD.name: recording.hazards[episode]}
        worlds.place(episode, qpos, qvel, goal, spots, keep_warm_start=step > 0)


def _contact_after(worlds: Worlds, recording: Recording, got: dict[str, np.ndarray]) -> np.ndarray:
    """Contact in the recorded states at the end of each step; that of all but the last is known from the next step."""
    place(worlds, recording, recording.steps)
    return np.concatenate([got["contact_before"][:, 1:], worlds.touching[:, None]], axis=1)


def _lidar_error(recording: Recording) -> float:
    raw = recording.raw
    states = recording.steps + 1
    kinds = (
        raw["goal"][..., None, :2].reshape(-1, 1, 2),
        np.repeat(recording.hazards, states, axis=0),
        raw["vase_pos"][..., :2].reshape(-1, recording.task.count(VASE), 2),
    )
    got = lidar.closeness(raw["agent_pos"].reshape(-1, 3), raw["agent_mat"].reshape(-1, 3, 3), kinds)
    wanted = np.concatenate([raw[name] for name in LIDARS], axis=-1)
    return float(np.abs(got - wanted.reshape(got.shape)).max())


def _magnetometer_error(recording: Recording) -> float:
    got = MAGNETIC_FIELD @ recording.raw["agent_mat"].reshape(*recording.raw["agent_mat"].shape[:2], 3, 3)
    return float(np.abs(got - recording.raw["magnetometer"]).max())


def _max(errors: np.ndarray) -> float:
    return float(errors.max()) if errors.size else 0.0
