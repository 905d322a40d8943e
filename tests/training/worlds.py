"""Somebody else's environment, which cannot be saved; importing it is quick, for workers do."""

import gymnasium

from ambs.envs import with_labels


def cartpole():
    """Gymnasium's own, with a label."""
    env = gymnasium.make("CartPole-v1")
    return with_labels(env, labels=lambda seen, _: {"far": abs(seen[0]) > 0.5}, spec="!far")
