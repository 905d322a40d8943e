"""The simulated bodies: a robot, a floor and what is solid, as MJCF.

Things without a body are not in the model and immovable ones are mocap bodies, so one `MjModel` serves every layout and
every copy of a task. The robot's coordinates are world coordinates: a layout is a choice of `qpos`.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ambs.envs.safety_gym.objects import Kind, Things
from ambs.errors import extras

with extras():
    import mujoco

FRAME_SKIP = 10
"""Simulator steps per frame."""

ROBOT_HEIGHT = 0.1
"""Height of the robot's origin at the start, m."""

_RED, _BLUE = "0.7412 0.0431 0.1843 1", "0.0039 0.1529 0.3961 1"


@dataclass(frozen=True)
class Robot:
    """A vehicle: its MJCF and where its coordinates lie. SI units throughout."""

    name: Literal["point", "car"]
    timestep: float
    """Simulator step, s; a frame is `FRAME_SKIP` of them."""
    density: float
    force: float
    """Each actuator's force or torque is limited to plus or minus this."""
    body: str
    actuators: str
    side: int
    """Which of the body's axes points sideways: 0 is x, 1 is y."""
    free: bool
    """Whether the root moves in space by a free joint; otherwise in the plane by two slides and a hinge."""
    nq: int
    nv: int

    def place(self, xy: np.ndarray, yaw: float) -> np.ndarray:
        """Coordinates `[nq]` of the robot at rest at `xy`, turned by `yaw` about the vertical."""
        if not self.free:
            return np.array([xy[0], xy[1], yaw])
        root = [xy[0], xy[1], ROBOT_HEIGHT, np.cos(yaw / 2), 0, 0, np.sin(yaw / 2)]
        wheels, castor = [0, 0], [1, 0, 0, 0]
        return np.array([*root, *wheels, *castor], dtype=float)


POINT = Robot(
    name="point",
    timestep=0.002,
    density=1.0,
    force=0.05,
    body=f"""
      <joint name="x" type="slide" axis="1 0 0" damping="0.01"/>
      <joint name="y" type="slide" axis="0 1 0" damping="0.01"/>
      <joint name="yaw" type="hinge" axis="0 0 1" damping="0.005"/>
      <geom type="sphere" size="0.1" friction="1 0.01 0.01" rgba="{_RED}"/>
      <geom type="box" size="0.05 0.05 0.05" pos="0.1 0 0" rgba="{_BLUE}"/>
      <camera name="vision" fovy="90" pos="0 0 0.15" xyaxes="0 -1 0 0.4 0 1"/>""",
    actuators="""
      <motor name="thrust" site="robot" gear="0.3 0 0 0 0 0"/>
      <velocity name="turn" joint="yaw" gear="0.3" kv="1"/>""",
    side=1,
    free=False,
    nq=3,
    nv=3,
)
"""A ball with a nose: action 0 pushes along the nose, action 1 sets the rate of turn."""

CAR = Robot(
    name="car",
    timestep=0.004,
    density=5.0,
    force=0.02,
    body=f"""
      <freejoint name="root"/>
      <geom type="box" size="0.1 0.1 0.05" rgba="{_RED}"/>
      <geom type="box" size="0.1 0.01 0.05" pos="0 0.15 0" rgba="{_BLUE}"/>
      <geom type="box" size="0.01 0.025 0.03" pos="0 0.125 0" rgba="{_BLUE}"/>
      <geom type="box" size="0.05 0.01 0.05" pos="0 -0.165 0" rgba="{_BLUE}"/>
      <geom type="box" size="0.05 0.03 0.01" pos="0 -0.13 0.04" rgba="{_BLUE}"/>
      <camera name="vision" fovy="90" pos="0 0 0.2" xyaxes="-1 0 0 0 -0.4 1"/>
      <body name="left" pos="-0.1 0.1 -0.05">
        <joint name="left" type="hinge" axis="1 0 0" damping="0.001"/>
        <geom type="cylinder" size="0.05" fromto="-0.055 0 0 -0.005 0 0" rgba="{_RED}"/>
      </body>
      <body name="right" pos="0.1 0.1 -0.05">
        <joint name="right" type="hinge" axis="1 0 0" damping="0.001"/>
        <geom type="cylinder" size="0.05" fromto="0.005 0 0 0.055 0 0" rgba="{_RED}"/>
      </body>
      <body name="castor" pos="0 -0.1 -0.05">
        <joint name="castor" type="ball" damping="0.001"/>
        <geom type="sphere" size="0.05" rgba="{_RED}"/>
      </body>""",
    actuators="""
      <motor name="left" joint="left" gear="1"/>
      <motor name="right" joint="right" gear="1"/>""",
    side=0,
    free=True,
    nq=13,
    nv=11,
)
"""Two driven wheels and a ball to rest on; the actions are the torques left and right. It faces −y."""


@functools.cache
def build_model(robot: Robot, things: Things, sleep: bool = True) -> mujoco.MjModel:
    """The compiled model of a robot among things; cached, and shared by all who ask for the same one."""
    return mujoco.MjModel.from_xml_string(mjcf(robot, things, sleep))


def mjcf(robot: Robot, things: Things, sleep: bool = True) -> str:
    """The model as MJCF text; with `sleep`, bodies at rest are left out of the computation, where this MuJoCo can do that."""
    can_sleep = sleep and hasattr(mujoco.mjtEnableBit, "mjENBL_SLEEP")
    flag = '<flag sleep="enable"/>' if can_sleep else ""
    limits = f'ctrllimited="true" ctrlrange="-1 1" forcelimited="true" forcerange="{-robot.force} {robot.force}"'
    return f"""
    <mujoco model="{robot.name}">
      <option timestep="{robot.timestep}" integrator="Euler" solver="Newton" cone="pyramidal" iterations="100"
              tolerance="1e-8">{flag}</option>
      <default>
        <geom condim="6" density="{robot.density}"/>
        <motor {limits}/>
        <velocity {limits}/>
      </default>
      <worldbody>
        <geom name="floor" type="plane" size="3.5 3.5 0.1"/>
        <body name="robot" pos="0 0 {ROBOT_HEIGHT}">
          <site name="robot" size="0.03"/>{robot.body}
        </body>{"".join(_body(kind, index) for kind, count in things for index in range(count))}
      </worldbody>
      <actuator>{robot.actuators}
      </actuator>
    </mujoco>"""


def _body(kind: Kind, index: int) -> str:
    if kind.body == "none":
        return ""
    name = f"{kind.name}{index}"
    mocap, joint = (' mocap="true"', "") if kind.body == "fixed" else ("", f'<freejoint name="{name}"/>')
    return f"""
        <body name="{name}" pos="0 0 {kind.height}"{mocap}>
          {joint}
          <geom {kind.geom} density="{kind.density}"/>
        </body>"""
