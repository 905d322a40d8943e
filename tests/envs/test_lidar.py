"""Pseudo-lidar against hand-worked readings."""

import numpy as np

from ambs.envs.safety_gym.lidar import closeness

UPRIGHT = np.eye(3)[None]
HERE = np.array([[0.0, 0.0, 0.1]])


def read(*targets, mat=UPRIGHT):
    return closeness(HERE, mat, [np.array([targets], dtype=float).reshape(1, -1, 2)])[0]


def test_a_target_dead_ahead_fills_its_bin_and_the_one_to_the_right():
    expected = np.zeros(16)
    expected[[0, 15]] = 0.5
    np.testing.assert_allclose(read((1.5, 0)), expected, atol=1e-12)


def test_a_target_in_the_middle_of_a_bin_shows_half_in_both_neighbours():
    angle = 2 * np.pi / 16 * 4.5
    expected = np.zeros(16)
    expected[[3, 4, 5]] = 1 / 3, 2 / 3, 1 / 3
    np.testing.assert_allclose(read((np.cos(angle), np.sin(angle))), expected, atol=1e-12)


def test_the_nearest_wins_and_the_far_is_invisible():
    np.testing.assert_allclose(read((3.5, 0)), np.zeros(16))
    np.testing.assert_allclose(read((2.0, 0), (1.0, 0)), read((1.0, 0)))
    assert (closeness(HERE, UPRIGHT, [np.zeros((1, 0, 2))]) == 0).all()


def test_readings_are_in_the_robots_frame():
    quarter = np.array([[[0.0, -1, 0], [1, 0, 0], [0, 0, 1]]])
    np.testing.assert_allclose(read((0, 1.5), mat=quarter), read((1.5, 0)), atol=1e-12)


def test_kinds_are_kept_apart():
    reading = closeness(HERE, UPRIGHT, [np.array([[[1.5, 0.0]]]), np.zeros((1, 0, 2)), np.array([[[0.0, 1.5]]])])[0]
    assert reading.shape == (48,)
    assert reading[0] == 0.5
    assert (reading[16:32] == 0).all()
    np.testing.assert_allclose(reading[32 + 4], 0.5)
