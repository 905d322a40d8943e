"""Pictures of any size and layout: means over areas, worked by hand."""

import gymnasium
import numpy as np
import pytest

from ambs.envs import with_labels, with_pictures
from ambs.envs.pictures import area_means, as_picture, shares
from ambs.envs.saving import can_save
from ambs.errors import UserError
from tests.envs.counting import Saving


def test_shares_of_pixels():
    np.testing.assert_allclose(shares(4, 2), [[0.5, 0.5, 0, 0], [0, 0, 0.5, 0.5]])
    np.testing.assert_allclose(shares(3, 2), [[2 / 3, 1 / 3, 0], [0, 1 / 3, 2 / 3]])
    np.testing.assert_allclose(shares(2, 3), [[1, 0], [0.5, 0.5], [0, 1]])


def test_area_means():
    """Of 3 × 2 pixels as 2 × 2: the middle row goes half to each; and 2 × 4 as 2 × 2: pairs of columns."""
    tall = np.array([[0, 30], [60, 90], [120, 150]], float)[..., None]
    np.testing.assert_allclose(area_means(tall, 2)[..., 0], [[20, 50], [100, 130]])
    wide = np.array([[0, 2, 10, 20], [4, 4, 8, 0]], float)[..., None]
    np.testing.assert_allclose(area_means(wide, 2)[..., 0], [[1, 15], [4, 4]])


def blocks(values, side):
    """Each value as a square of pixels."""
    return np.kron(np.array(values), np.ones((side, side)))


def test_layouts_and_types():
    """Four squares of 8 pixels, 16 × 16 in all, seen as 2 × 2."""
    levels = [[0, 51], [102, 255]]
    grey = blocks(levels, 8).astype(np.uint8)
    expected = np.repeat(np.array(levels, np.uint8)[..., None], 3, axis=2)
    for picture in (grey, grey[..., None], grey[None], np.stack([grey] * 3), np.stack([grey] * 3, axis=-1)):
        np.testing.assert_array_equal(as_picture(picture, 2), expected)
    # From −1 … 1: −1, −0.6, −0.2 and 1.
    floats = (blocks([[-1, -0.6], [-0.2, 1]], 8)).astype(np.float32)
    np.testing.assert_array_equal(as_picture(floats, 2, (-1.0, 1.0)), expected)
    six = np.stack([grey] * 3 + [255 - grey] * 3)
    np.testing.assert_array_equal(as_picture(six, 2)[..., 3:], 255 - expected)


class Seen(gymnasium.Env):
    """Grey floats with channels first, of a size that no network takes, beside a vector."""

    action_space = gymnasium.spaces.Discrete(2)
    observation_space = gymnasium.spaces.Dict(
        {"camera": gymnasium.spaces.Box(0, 1, (1, 24, 40), np.float32)}
        | {"speed": gymnasium.spaces.Box(-1, 1, (2,), np.float32)}
    )

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return {"camera": np.full((1, 24, 40), 0.2, np.float32), "speed": np.zeros(2, np.float32)}, {}


def test_an_environment_shows_what_can_be_learned_from():
    env = with_pictures(Seen(), size=32)
    observation, _ = env.reset(seed=0)
    assert observation in env.observation_space
    assert observation["camera"].shape == (32, 32, 3)
    assert (observation["camera"] == 51).all()
    assert observation["speed"].tolist() == [0, 0]


@pytest.mark.parametrize(
    "seen", [np.full((1, 24, 40), np.nan), np.zeros((1, 20, 20)), np.ma.masked_equal(np.zeros((1, 24, 40)), 0)]
)
def test_a_picture_that_is_none_is_not_made_one(seen):
    """Resized and rounded it would look like any other; as an exception it is a fault of the environment."""
    with pytest.raises(ValueError, match="whole, finite and of shape"):
        with_pictures(Seen(), size=32).observation({"camera": seen, "speed": np.zeros(2, np.float32)})


def test_labels_see_what_is_inside_and_saving_goes_through():
    labelled = with_labels(Seen(), labels=lambda seen, _: {"grey": seen["camera"].shape == (1, 24, 40)}, spec="!grey")
    assert with_pictures(labelled).reset(seed=0)[1]["labels"].tolist() == [True]

    class Wide(Saving):
        observation_space = gymnasium.spaces.Box(0, 255, (20, 30, 3), np.uint8)

    assert can_save(with_pictures(Wide("")))


def test_what_is_refused():
    for wrong in (0, 8, 60):
        with pytest.raises(UserError, match="size must be a multiple of 16 pixels, 4096 at most, got"):
            with_pictures(Seen(), wrong)
    with pytest.raises(UserError, match=r"finds no picture with finite bounds in Box\(.*\(4,\)"):
        with_pictures(gymnasium.make("CartPole-v1"))
    with pytest.raises(UserError, match=r"needs a gymnasium\.Env, got str"):
        with_pictures("CartPole-v1")
