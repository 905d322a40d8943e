"""The tasks: which robot, how wide the arena, how many obstacles, and what counts as safe. Lengths in metres."""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from ambs.envs.safety_gym.robots import CAR, POINT, Robot
from ambs.errors import UserError
from ambs.spec.formula import Atoms, Formula
from ambs.spec.parser import parse_formula

ATOMS = Atoms(("hazard", "collision", "vase_moving"))
"""`hazard`: the robot's origin is within `HAZARD_RADIUS` of a hazard's centre. `collision`: the robot touches a vase.
`vase_moving`: some vase is faster than `VASE_SPEED`."""

MAX_FRAMES = 1000
"""An episode is truncated after this many frames."""

GOAL_RADIUS = 0.3
HAZARD_RADIUS = 0.2
VASE_SPEED = 1e-4
"""m/s."""

AGENT_KEEPOUT, GOAL_KEEPOUT, HAZARD_KEEPOUT, VASE_KEEPOUT = 0.4, 0.305, 0.18, 0.15


@dataclass(frozen=True)
class Task:
    """One robot, one kind of arena, one safety formula."""

    name: str
    robot: Robot
    extent: float
    """Everything is placed in the square from −extent to +extent."""
    hazards: int
    vases: int
    psi: str

    @property
    def spec(self) -> Formula:
        """Ψ over `ATOMS`."""
        return parse_formula(self.psi)

    @property
    def summary(self) -> str:
        """One line for people."""
        robot = "The Point robot" if self.robot is POINT else "The Car robot"
        things = [f"{self.hazards} hazards"] if self.hazards else []
        things += [f"{self.vases} vase" + "s" * (self.vases > 1)] if self.vases else []
        return f"{robot} seeks goals {'among ' + ' and '.join(things) if things else 'on a bare floor'}."


def _levels(robot: Robot, prefix: str) -> tuple[Task, ...]:
    return (
        Task(f"{prefix}Goal0", robot, extent=1.0, hazards=0, vases=0, psi="!hazard"),
        Task(f"{prefix}Goal1", robot, extent=1.5, hazards=8, vases=1, psi="!hazard"),
        Task(f"{prefix}Goal2", robot, extent=2.0, hazards=10, vases=10, psi="!hazard & !collision"),
    )


TASKS = {task.name: task for task in (*_levels(POINT, "Point"), *_levels(CAR, "Car")[:2])}


def find_task(name: str) -> Task:
    """The task of that name, such as `PointGoal1`."""
    if name not in TASKS:
        near = difflib.get_close_matches(name, TASKS, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise UserError(f"unknown task {name!r}; known tasks: {', '.join(TASKS)}{hint}")
    return TASKS[name]
