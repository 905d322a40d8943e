"""The ray-caster against recorded frames, against MuJoCo where OpenGL works, and against answers worked by hand."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ambs.envs.safety_gym import gl
from ambs.envs.safety_gym.camera import Camera
from ambs.envs.safety_gym.gl import MujocoCamera
from ambs.errors import UserError

GOLDEN = Path(__file__).parents[1] / "golden"
ROBOTS = {"PointGoal1": "point", "PointGoal2": "point", "CarGoal1": "car"}
DARK, BRIGHT = (219, 214, 195), (241, 233, 218)


@pytest.fixture(scope="module")
def point():
    return Camera("point")


@pytest.fixture(scope="module")
def matte():
    return Camera("point", mirror=False)


@pytest.mark.parametrize("task", ROBOTS)
def test_recorded_frames(task):
    frames, scene = _recorded(task)
    error = np.abs(np.asarray(Camera(ROBOTS[task]).render(*scene)).astype(int) - frames)
    assert error.mean() <= 0.7
    assert (error <= 2).mean() >= 0.96


def test_recorded_frames_of_the_rear_camera(point):
    frames, scene = _recorded("PointGoal2", "frame_back")
    error = np.abs(np.asarray(point.back(*scene)).astype(int) - frames)
    assert error.mean() <= 0.6
    assert (error <= 2).mean() >= 0.97


def test_recorded_frames_of_the_cars_rear_camera():
    """Recorded in other tasks: `columns` are those of a frame in which nothing but floor, hazards and bumper is in view."""
    data = np.load(GOLDEN / "CarBack.npz")
    pos, mat, hazards = (data[name].astype(np.float32) for name in ("agent_pos", "agent_mat", "hazards"))
    vases = np.zeros((len(pos), 0, 3), np.float32), np.zeros((len(pos), 0, 3, 3), np.float32)
    ours = np.asarray(Camera("car").back(pos, mat, None, hazards, *vases))
    error = np.abs(ours.astype(int) - data["frame"]).swapaxes(1, 2)[data["columns"]]
    assert error.mean() <= 0.5
    assert (error <= 2).mean() >= 0.97
    bumper = data["frame"][:, -1, 32].astype(int)
    assert (bumper[:, 2] > 2 * bumper[:, 0]).all(), "the bumper is in the bottom row"


@pytest.mark.slow
@pytest.mark.parametrize(("task", "palette"), [("PointGoal2", "safety_gymnasium"), ("CarGoal1", "openai")])
def test_agrees_with_mujoco(task, palette):
    _, scene = _recorded(task)
    scene = [array[::9] for array in scene]
    theirs, ours = MujocoCamera(ROBOTS[task], palette=palette), Camera(ROBOTS[task], palette=palette)
    try:
        pairs = [(theirs.render(*scene), ours.render(*scene)), (theirs.back(*scene), ours.back(*scene))]
        pairs += [(getattr(theirs, view)(*scene, size=96), getattr(ours, view)(*scene, size=96)) for view in VIEWS]
    except UserError as error:
        pytest.skip(str(error))
    finally:
        theirs.close()
    for reference, picture in pairs:
        assert np.abs(np.asarray(picture).astype(int) - reference).mean() <= 1.5


VIEWS = ("chase", "top_down")


def test_without_opengl_one_sentence_says_what_to_install(monkeypatch):
    def broken(*_):
        raise ImportError("no\nlibrary")

    monkeypatch.setattr(gl.mujoco, "Renderer", broken)
    monkeypatch.setattr(gl, "_failures", [])
    with pytest.raises(UserError, match=r"\(no library\): install libegl1 or libosmesa6 .* MUJOCO_GL=egl"):
        MujocoCamera("point").render(*_scene())


def test_floor_shows_its_two_colours(point):
    for y, colour in ((0.1, BRIGHT), (-0.25, DARK)):
        # .1 and .25 from the edges between tiles, and near enough that no coarser texture is used.
        image = _one(point, robot=(-0.5, y))
        row, column, hit = _pixel_towards((-0.5, y), (0.2, y + 0.05))
        assert np.array_equal(np.floor(hit[:2] / 0.35), [0, np.floor((y + 0.05) / 0.35)])
        assert np.abs(image[row, column].astype(int) - colour).max() <= 1


@pytest.mark.parametrize(("count", "passes"), [(1, 0.75**2), (2, 0.75**4)])
def test_a_hazard_is_blended_twice(point, count, passes):
    row, column, _ = _pixel_towards((0, 0), (0.8, 0.1))
    *_, hit = _pixel_towards((0, 0), (0.8, 0.1), z=0.03)
    bare, covered = _one(point), _one(point, hazards=[hit[:2]] * count)
    expected = passes * bare[row, column] + (1 - passes) * np.array([0, 0, 255])
    assert np.abs(covered[row, column] - expected).max() <= 1.5


def test_the_goal_tints_the_sky_by_what_its_side_reflects(matte):
    # Straight ahead a vertical side faces the eye by cos(21.8 deg): .1 + .4 * .9285 of green, blended twice over black.
    image = _one(matte, robot=(20, 0), goal=(20.6, 0)).astype(int)
    expected = (1 - 0.75**2) * (0.1 + 0.4 / np.sqrt(1.16)) * 255
    assert abs(image[20, 32, 1] - image[20, 32, 0] - expected) <= 2


def test_a_vase_hides_the_goal_behind_it_and_not_the_one_before_it(matte):
    row, column, _ = _pixel_towards((0, 0), (1.0, 0.0), z=0.1)
    vase = {"vases": [(1.0, 0.0, 0.1)]}
    alone, behind, before = (_one(matte, **vase, goal=goal) for goal in ((0, -900), (1.6, 0), (0.6, 0)))
    assert np.array_equal(alone[row, column], behind[row, column])
    # The goal adds its green, and its highlight to all three alike.
    blue, faded = (float(image[row, column, 2]) - float(image[row, column, 0]) for image in (alone, before))
    assert faded == pytest.approx(0.75**2 * blue, abs=2)
    # A vertical face of (0, 1, 1) across the optical axis, lit by .1 + .4 cos(21.8 deg).
    assert alone[row, column, 1] - alone[row, column, 0] == pytest.approx((0.1 + 0.4 / np.sqrt(1.16)) * 255, abs=2)


def test_from_inside_the_goal_is_not_seen(matte):
    assert np.array_equal(_one(matte, goal=(0.1, 0.1)), _one(matte))
    assert not np.array_equal(_one(matte, goal=(0.45, 0.0)), _one(matte))


def test_the_near_plane_clips_the_goal(matte):
    # With the side .02 m before the eye the optical axis meets it nearer than .0396 m.
    row, column = 31, 32
    close, clear = _one(matte, goal=(0.32, 0.0)), _one(matte)
    assert np.array_equal(close[row, column], clear[row, column])


def test_nothing_but_the_robot_off_the_floor(point):
    image = _one(point, robot=(30, 0))
    assert (image[:30] <= 1).all()
    assert image[-1, 32, 0] > 150


def test_a_half_turn_of_the_world_changes_nothing(point):
    objects = {"goal": (1.2, 0.3), "hazards": [(0.8, -0.3), (1.5, 0.9)], "vases": [(0.7, 0.35, 0.1)]}
    image = _one(point, robot=(0.1, -0.2), **objects)
    turned = _one(point, robot=(0.1, -0.2), **objects, turn=np.pi)
    assert np.abs(image.astype(int) - turned).mean() < 0.02


def test_any_turn_of_the_world_changes_only_the_floor(point):
    objects = {"goal": (21.2, 0.3), "hazards": [(20.8, -0.3), (21.5, 0.9)], "vases": [(20.7, 0.35, 0.1)]}
    image = _one(point, robot=(20, 0), **objects)
    for turn in (0.4, 2.0):
        turned = _one(point, robot=(20, 0), **objects, turn=turn)
        assert np.abs(image.astype(int) - turned).mean() < 0.05


def test_the_floor_mirrors_the_goal(point, matte):
    shiny, dull = (_one(camera, goal=(1.2, 0.0)).astype(int) for camera in (point, matte))
    assert (shiny >= dull).all()
    assert (shiny - dull).max() > 20


def test_a_batch_equals_its_pictures_one_by_one(point):
    objects = {"goal": (1.2, 0.3), "hazards": [(0.8, -0.3)], "vases": [(0.7, 0.35, 0.1)]}
    scenes = [_scene(robot=(0.1 * i, -0.2), turn=0.3 * i, **objects) for i in range(3)]
    batch = np.asarray(point.render(*map(np.concatenate, zip(*scenes, strict=True))))
    for scene, image in zip(scenes, batch, strict=True):
        assert np.array_equal(point.render(*scene)[0], image)


def test_a_second_call_compiles_nothing(matte):
    matte.render(*_scene())
    compiled = matte._vision._cache_size()
    matte.render(*_scene(robot=(1, 1), hazards=[(0.5, 0.5)]))
    assert matte._vision._cache_size() == compiled


def test_inside_a_larger_jit(point):
    scene = _scene(goal=(1.0, 0.0))
    inside = jax.jit(lambda *arrays: point.render(*arrays).astype(jnp.float32) / 255)(*scene)
    assert np.abs(np.asarray(inside) * 255 - np.asarray(point.render(*scene))).max() < 0.01


@pytest.mark.parametrize(
    "options",
    [
        {"robot": "car", "samples": 1, "mirror": False},
        {"robot": "point", "size": 33, "samples": 1, "palette": "openai"},
    ],
)
def test_options(options):
    camera = Camera(**options)
    images = camera.render(*_scene(goal=(1, 0), hazards=[(0.5, 0.5)], vases=[(0.9, -0.3, 0.1)]))
    size = options.get("size", 64)
    assert images.shape == (1, size, size, 3)
    assert images.dtype == jnp.uint8
    assert len(np.unique(np.asarray(images).reshape(-1, 3), axis=0)) > 10


def test_no_hazards_no_vases_no_goal(point):
    robot_pos, robot_mat, *_ = _scene()
    empty = point.render(robot_pos, robot_mat, None, np.zeros((1, 0, 2)), np.zeros((1, 0, 3)), np.zeros((1, 0, 3, 3)))
    assert np.array_equal(empty[0], _one(point))


def test_half_the_size_and_one_sample_are_a_coarser_view_of_the_same(point):
    objects = {"goal": (1.2, 0.3), "hazards": [(0.8, -0.3)], "vases": [(0.7, 0.35, 0.1)]}
    coarse = _one(Camera("point", size=32, samples=1), **objects)
    fine = _one(point, **objects).reshape(32, 2, 32, 2, 3).mean((1, 3))
    assert np.abs(fine - coarse).mean() < 6


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"robot": "doggo"}, "robot='doggo'"),
        ({"samples": 2}, "samples=2"),
        ({"palette": "neon"}, "palette='neon'"),
        ({"size": 0}, "size=0"),
    ],
)
def test_bad_options_get_a_sentence(options, sentence):
    with pytest.raises(UserError, match=sentence):
        Camera(**{"robot": "point", **options})


def _recorded(task, kind="frame"):
    """Frames `[N, 64, 64, 3]` of a golden file and the scene in which each was taken."""
    data = np.load(GOLDEN / f"{task}.npz")
    steps = data[f"{kind}_step"]
    episode, step = np.repeat(np.arange(len(steps)), steps.shape[1]), steps.ravel()
    vase_pos, vase_mat = data["vase_pos"][episode, step], data["vase_mat"][episode, step]
    scene = (
        data["agent_pos"][episode, step],
        data["agent_mat"][episode, step].reshape(-1, 3, 3),
        data["goal"][episode, step][:, :2],
        data["layout_hazards"][episode],
        vase_pos,
        vase_mat.reshape(*vase_pos.shape, 3),
    )
    return data[kind].reshape(-1, 64, 64, 3), tuple(array.astype(np.float32) for array in scene)


def _scene(robot=(0, 0), goal=(0, -900), hazards=(), vases=(), turn=0.0):
    """One scene: the robot looks along +x, vases are aligned with the axes; then the world turns about its origin.

    Objects far away stand for a missing goal and fill up to two hazards and one vase: most tests share a compilation.
    """
    hazards = [*hazards, *[(0, -900)] * (2 - len(hazards))]
    vases = [*vases, *[(0, -900, 0.1)] * (1 - len(vases))]
    rotation = np.array([[np.cos(turn), -np.sin(turn), 0], [np.sin(turn), np.cos(turn), 0], [0, 0, 1]])
    spin = lambda points, width: np.asarray(points, float).reshape(-1, width) @ rotation[:width, :width].T  # noqa: E731
    arrays = (
        spin([*robot, 0.1], 3),
        rotation[None],
        spin(goal, 2),
        spin(hazards, 2)[None],
        spin(vases, 3)[None],
        np.broadcast_to(rotation, (1, len(vases), 3, 3)),
    )
    return tuple(np.asarray(array, np.float32) for array in arrays)


def _one(camera, **scene):
    return np.asarray(camera.render(*_scene(**scene))[0])


def _pixel_towards(robot, target, z=0.0):
    """Row and column of the Point's pixel that sees (x, y, z), and where the ray through its centre has height z."""
    forward, up = np.array([1, 0, -0.4]) / np.sqrt(1.16), np.array([0.4, 0, 1]) / np.sqrt(1.16)
    eye = np.array([*robot, 0.25])
    towards = np.array([*target, z]) - eye
    depth = towards @ forward
    column, row = int((1 - towards[1] / depth) * 32), int((1 - towards @ up / depth) * 32)
    x, y = (column + 0.5) / 32 - 1, 1 - (row + 0.5) / 32
    ray = forward + y * up + x * np.array([0, -1, 0])
    return row, column, eye + ray * (z - eye[2]) / ray[2]
