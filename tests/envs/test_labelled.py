"""Labels for environments of other people."""

import gymnasium
import numpy as np
import pytest

from ambs.envs import with_labels
from ambs.errors import UserError


def cart(labels, spec="!far", **options):
    return with_labels(gymnasium.make("CartPole-v1"), labels=labels, spec=spec, **options)


@pytest.mark.parametrize(
    "labels", [lambda seen, _: {"far": abs(seen[0]) > 0.06}, lambda seen, _: {"far"} if abs(seen[0]) > 0.06 else set()]
)
def test_labels_and_cost_follow_the_labelling_function(labels):
    env = cart(labels)
    assert env.atoms.names == ("far",)
    _, info = env.reset(seed=0)
    assert info["labels"].tolist() == [False]
    seen = []
    for _ in range(8):
        observation, _, _, _, info = env.step(1)
        assert info["labels"].tolist() == [abs(observation[0]) > 0.06]
        assert info["cost"] == float(abs(observation[0]) > 0.06)
        seen.append(info["cost"])
    assert set(seen) == {0.0, 1.0}


def test_more_atoms_than_the_formula_needs():
    env = cart(lambda seen, _: {"right": seen[0] > 0, "far": np.array(False)}, atoms=["right", "far"])
    assert env.reset(seed=0)[1]["labels"].shape == (2,)


@pytest.mark.parametrize(
    ("labels", "options", "message"),
    [
        (lambda *_: {"fra": True, "far": True}, {}, "unknown atom 'fra'.*did you mean 'far'"),
        (lambda *_: {}, {}, "says nothing about far"),
        (lambda *_: {"far": 0.3}, {}, "the label 'far' must be true or false, got 0.3"),
        (lambda *_: [True], {}, "must return a mapping from names to bools or a set of names, got list"),
        (lambda *_: {"near"}, {"atoms": ["near"]}, "unknown atom 'far'"),
        (lambda *_: {"far"}, {"spec": "far | !far"}, r"Ψ = far \| !far holds in every state"),
        (lambda *_: {"far"}, {"spec": "false"}, "Ψ = false fails in every state"),
    ],
)
def test_mistakes_get_a_sentence(labels, options, message):
    with pytest.raises(UserError, match=message):
        cart(labels, **options).reset()


def test_only_environments_can_be_labelled():
    with pytest.raises(UserError, match=r"needs a gymnasium\.Env, got str"):
        with_labels("CartPole-v1", labels=lambda *_: set(), spec="true")
