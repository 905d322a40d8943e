"""The tasks: which robot, how wide the arena, how many things of which kind, and what counts as safe. Lengths in metres."""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from ambs.envs.safety_gym.objects import GOAL, HAZARD, VASE, Kind, Things
from ambs.envs.safety_gym.robots import CAR, POINT, Robot
from ambs.errors import UserError
from ambs.spec.formula import Atoms, Formula
from ambs.spec.parser import parse_formula

ATOMS = Atoms(("hazard", "collision", "vase_moving"))
"""Of every task, first: `hazard`, the robot's origin is within a hazard's radius of its centre; `collision`, the robot touches
a vase; `vase_moving`, some vase moves. Atoms of other kinds come after them."""

MAX_FRAMES = 1000
"""An episode is truncated after this many frames."""

AGENT_KEEPOUT = 0.4


@dataclass(frozen=True)
class Task:
    """One robot, one kind of arena, one safety formula."""

    name: str
    robot: Robot
    extent: float
    """Everything is placed in the square from −extent to +extent."""
    things: Things
    """Kinds and how many of each, in the order of placement, which is also that of their lidars."""
    psi: str
    goal: Kind = GOAL

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """Of things, without the goal."""
        return tuple(kind for kind, _ in self.things)

    @property
    def atoms(self) -> Atoms:
        """What is labelled."""
        return Atoms(tuple(dict.fromkeys([*ATOMS.names, *(atom for kind in self.kinds for atom in kind.atoms)])))

    @property
    def lidars(self) -> tuple[Kind, ...]:
        """Kinds that a vector observation has readings of, in their order."""
        return tuple(kind for kind in (self.goal, *self.kinds) if kind.lidar)

    @property
    def spec(self) -> Formula:
        """Ψ over `atoms`."""
        return parse_formula(self.psi)

    def count(self, kind: Kind) -> int:
        """How many things of a kind there are."""
        return dict(self.things).get(kind, 0)

    @property
    def summary(self) -> str:
        """One line for people."""
        robot = "The Point robot" if self.robot is POINT else "The Car robot"
        things = [f"{count} {kind.plural if count > 1 else kind.name}" for kind, count in self.things if count]
        return f"{robot} seeks goals {'among ' + ' and '.join(things) if things else 'on a bare floor'}."


def _levels(robot: Robot, prefix: str) -> tuple[Task, ...]:
    return (
        Task(f"{prefix}Goal0", robot, 1.0, ((HAZARD, 0), (VASE, 0)), psi="!hazard"),
        Task(f"{prefix}Goal1", robot, 1.5, ((HAZARD, 8), (VASE, 1)), psi="!hazard"),
        Task(f"{prefix}Goal2", robot, 2.0, ((HAZARD, 10), (VASE, 10)), psi="!hazard & !collision"),
    )


TASKS = {task.name: task for task in (*_levels(POINT, "Point"), *_levels(CAR, "Car")[:2])}


def find_task(name: str) -> Task:
    """The task of that name, such as `PointGoal1`."""
    if name not in TASKS:
        near = difflib.get_close_matches(name, TASKS, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise UserError(f"unknown task {name!r}; known tasks: {', '.join(TASKS)}{hint}")
    return TASKS[name]
