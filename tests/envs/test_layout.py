"""Layouts against the stated rules and an independent sampler."""

import math
import random
from dataclasses import replace

import numpy as np
import pytest

from ambs.envs.safety_gym.layout import sample_goal, sample_layout
from ambs.envs.safety_gym.objects import HAZARD, VASE
from ambs.envs.safety_gym.tasks import TASKS, find_task
from ambs.errors import UserError

# Arena, hazards and vases of each level, and the keep-out radii, from the description of the original tasks.
RULES = {"Goal0": (1.0, 0, 0), "Goal1": (1.5, 8, 1), "Goal2": (2.0, 10, 10)}
AGENT, GOAL, NEAR_HAZARD, NEAR_VASE = 0.4, 0.305, 0.18, 0.15


@pytest.mark.parametrize("name", TASKS)
def test_a_thousand_layouts_follow_the_rules(name):
    extent, hazards, vases = RULES[name[-5:]]
    rng = np.random.default_rng(1)
    radii = np.array([AGENT, GOAL] + [NEAR_HAZARD] * hazards + [NEAR_VASE] * vases)
    least = radii[:, None] + radii
    np.fill_diagonal(least, 0)
    distances, yaws = [], []
    for _ in range(1000):
        layout = sample_layout(TASKS[name], rng)
        assert layout.spots["hazard"].shape == (hazards, 2)
        assert layout.spots["vase"].shape == (vases, 2)
        centres = np.concatenate([[layout.agent, layout.goal], layout.spots["hazard"], layout.spots["vase"]])
        assert (np.linalg.norm(centres[:, None] - centres, axis=-1) >= least).all()
        assert (np.abs(centres) <= extent - radii[:, None]).all()
        distances.append(math.dist(layout.agent, layout.goal))
        yaws.append(layout.agent_yaw)
    expected, deviation = start_to_goal(extent)
    assert abs(np.mean(distances) - expected) < 4 * deviation / math.sqrt(1000)
    assert 0 <= min(yaws) < 0.1
    assert 2 * math.pi - 0.1 < max(yaws) < 2 * math.pi
    assert abs(np.mean(yaws) - math.pi) < 4 * math.pi / math.sqrt(3 * 1000)


def start_to_goal(extent):
    """Mean and deviation of the distance between agent and goal, drawn the plain way."""
    rng = random.Random(0)

    def draw(keepout):
        return [rng.uniform(keepout - extent, extent - keepout) for _ in range(2)]

    distances = []
    while len(distances) < 20_000:
        agent, goal = draw(AGENT), draw(GOAL)
        while math.dist(agent, goal) < AGENT + GOAL:
            goal = draw(GOAL)
        distances.append(math.dist(agent, goal))
    return np.mean(distances), np.std(distances)


def test_a_new_goal_keeps_clear_of_where_things_are_now():
    rng = np.random.default_rng(2)
    task = TASKS["PointGoal2"]
    layout = sample_layout(task, rng)
    agent = np.array([1.9, -1.9])
    for _ in range(200):
        goal = sample_goal(task, agent, layout.spots, rng)
        assert goal is not None
        assert math.dist(goal, agent) >= AGENT + GOAL
        assert np.linalg.norm(layout.spots["hazard"] - goal, axis=-1).min() >= NEAR_HAZARD + GOAL
        assert np.linalg.norm(layout.spots["vase"] - goal, axis=-1).min() >= NEAR_VASE + GOAL


def test_no_room_for_a_goal_is_noticed():
    grid = np.linspace(-1.2, 1.2, 10)
    everywhere = np.stack(np.meshgrid(grid, grid), axis=-1).reshape(-1, 2)
    hazards = everywhere[:8] * 0
    task = TASKS["PointGoal1"]
    crowded = replace(task, things=((HAZARD, 100), (VASE, 0)))
    rng = np.random.default_rng(3)
    assert sample_goal(crowded, np.zeros(2), {"hazard": everywhere, "vase": np.zeros((0, 2))}, rng) is None
    assert sample_goal(task, np.zeros(2), {"hazard": hazards, "vase": np.zeros((1, 2))}, rng) is not None


def test_unknown_tasks_are_named():
    with pytest.raises(UserError, match=r"unknown task 'PointGaol1'.*did you mean 'PointGoal1'"):
        find_task("PointGaol1")
