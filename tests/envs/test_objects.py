"""The table of kinds: what it says of the originals' objects, and that a new row is drawn and mapped as it should be."""

from dataclasses import replace

import numpy as np
import pytest

from ambs.envs.safety_gym import objects
from ambs.envs.safety_gym.camera import Camera
from ambs.envs.safety_gym.gl import MujocoCamera
from ambs.envs.safety_gym.objects import GOAL, HAZARD, VASE, Kind, drawn
from ambs.envs.safety_gym.scenes import lidar_scene, outlook, world_scene
from ambs.envs.safety_gym.tasks import TASKS
from ambs.envs.safety_gym.worlds import Worlds
from ambs.envs.scene import kind_looks, kind_names
from ambs.errors import UserError

PILLAR = Kind(
    "pillar", "cylinder", (0.2, 0.5), 0.5, 0.3, (0.5, 0.5, 1.0), body="fixed", touched="bump", map_colour="violet"
)
GHOST = Kind("ghost", "box", (0.1, 0.1, 0.1), 0.2, 0.1, (0.5, 0.0, 1.0), alpha=0.1, lidar=False)


def test_kinds_by_the_way_in_which_they_are_drawn():
    assert drawn((HAZARD, VASE)) == (HAZARD, VASE, ())
    assert drawn((PILLAR, VASE, GHOST)) == (None, VASE, (PILLAR, GHOST))
    wide = replace(HAZARD, name="pool")
    assert drawn((HAZARD, wide)) == (HAZARD, None, (wide,))


def scene(pillar, ghost):
    """The robot in the middle looks along +x; nothing of the Goal tasks is there."""
    none, turned = np.zeros((1, 0, 3), np.float32), np.eye(3, dtype=np.float32)[None]
    things = (np.array([[[*place, height]]], np.float32) for place, height in ((pillar, 0.5), (ghost, 0.2)))
    poses = [array for pos in things for array in (pos, turned[None])]
    robot = np.array([[0, 0, 0.1]], np.float32)
    return robot, turned, None, none[..., :2], none, np.zeros((1, 0, 3, 3), np.float32), *poses


NEW = {"kinds": (HAZARD, VASE, PILLAR, GHOST)}
THERE = scene((1.5, 0.0), (0.8, 0.5))


@pytest.fixture(scope="module")
def picture():
    return Camera("point", 32, **NEW)


def test_new_kinds_are_drawn(picture):
    """The side of a pillar ahead has .5 more blue than red in the light of the headlight, .1 + .4·cos 21.8°; a faint box to the
    left has no green, and lets .9² of the floor's by."""
    ours, bare = (np.asarray(picture.render(*one)[0]).astype(int) for one in (THERE, scene((0, -900), (0, -900))))
    pillar = ours[4:12, 16]
    np.testing.assert_allclose(pillar[:, 2] - pillar[:, 0], 0.5 * (0.1 + 0.4 / 1.16**0.5) * 255, atol=2)
    np.testing.assert_array_equal(pillar[:, 0], pillar[:, 1])
    # Rows and columns in which the box stands before the floor; above them is the sky.
    np.testing.assert_allclose(ours[11:13, 2:6, 1], 0.81 * bare[11:13, 2:6, 1], atol=1)
    assert (ours[14:, :12] == bare[14:, :12]).all()


@pytest.mark.slow
def test_new_kinds_are_drawn_as_mujoco_does(picture):
    theirs = MujocoCamera("point", 32, **NEW)
    try:
        error = np.abs(theirs.render(*THERE)[0].astype(int) - np.asarray(picture.render(*THERE)[0]))
    except UserError as reason:
        pytest.skip(str(reason))
    finally:
        theirs.close()
    assert error.mean() < 2.0


def test_new_kinds_are_mapped_sensed_and_saved(monkeypatch):
    monkeypatch.setitem(objects.KINDS, "pillar", PILLAR)
    task = replace(TASKS["PointGoal1"], things=((HAZARD, 2), (PILLAR, 2), (GHOST, 1)))
    worlds = Worlds(task)
    worlds.reset(0, np.random.default_rng(0))
    monkeypatch.setitem(objects.KINDS, "ghost", GHOST)
    drawn_map = world_scene(worlds, 0)
    names = [kind_names()[int(code)] for code in drawn_map.items[:, 0]]
    assert names == ["goal", "hazard", "hazard", "pillar", "pillar", "ghost"]
    np.testing.assert_allclose(drawn_map.items[3:5, 1:3], worlds.spots(PILLAR)[0], atol=1e-6)
    assert kind_looks() == {
        "pillar": {"colour": "violet", "square": False},
        "ghost": {"colour": "brown", "square": True},
    }
    vector = worlds.vectors()[0]
    assert task.lidars == (GOAL, HAZARD, PILLAR)
    nearest = np.linalg.norm(worlds.spots(PILLAR)[0] - worlds.robot_pos[0, :2], axis=-1).min()
    assert vector[12 + 32 :].max() == pytest.approx(max(0.0, 1 - nearest / 3), abs=1e-3)
    seen = lidar_scene(vector, task.lidars)
    assert {kind_names()[int(code)] for code in seen.items[:, 0]} >= {"pillar"}
    assert outlook(worlds).gaps.shape == (1, 5)
    copy = Worlds(task)
    copy.set_state(worlds.get_state())
    for kind in task.kinds:
        np.testing.assert_array_equal(copy.pose(kind)[0], worlds.pose(kind)[0])
