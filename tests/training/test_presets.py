"""How settings combine, and what is said about bad ones."""

import json
from dataclasses import replace

import pytest

from ambs.config import Config
from ambs.errors import UserError
from ambs.presets import METHODS, PRESETS, SHIELDED, changed, from_dict, resolve, to_dict


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("semantics", ["corrected", "paper"])
@pytest.mark.parametrize("method", METHODS)
def test_every_combination_survives_json(preset, semantics, method):
    config = resolve(preset, semantics=semantics, method=method)
    assert from_dict(json.loads(json.dumps(to_dict(config)))) == config
    assert config.shielded == (method in SHIELDED)
    assert config.agent.penalty == {"ambs": "none", "dreamer": "none"}.get(method, method)


def test_the_papers_semantics_follow_its_code():
    config = resolve("paper-scale", semantics="paper", method="plpg")
    assert resolve("default", semantics="paper").model.label_scale == config.model.label_scale == 1.0
    assert config.agent.backup_norm_limit * config.shield.cost == config.agent.norm_limit == 1.0
    assert (config.training.batch, config.training.length) == (16, 64)
    assert (config.model.cost_head, config.agent.actor_grad, config.training.time_limit) == (
        "two_hot",
        "dynamics",
        "termination",
    )
    assert not config.agent.plpg_stop_gradient
    shield = config.shield
    assert (shield.rule, shield.labels, shield.rolled, shield.critics, shield.traces) == (
        "fixed",
        "mean",
        15,
        "min",
        512,
    )


def test_a_quarter_million_updates_for_a_million_frames():
    """The notes: train ratio 512 and batches of 1024 steps make .5 updates per agent step."""
    training = resolve("paper-scale").training
    assert training.updates_due(training.frames // training.action_repeat) == 250_000
    # 64 at first: 50 000 steps of it, then 450 000 at 512.
    early = replace(training, early_ratio=64.0, early_frames=100_000)
    assert early.updates_due(50_000) == 3125
    assert early.updates_due(training.frames // training.action_repeat) == 3125 + 225_000


def test_the_lagrangian_counts_violations():
    assert resolve("default", method="lag").shield.cost == 1.0


def test_a_property_sets_level_horizon_and_formula():
    config = resolve("default", spec="P>=0.95 [ G<=20 !(hazard | collision) ]")
    assert config.shield.safety_level == pytest.approx(0.05)
    assert config.shield.approximation_error == pytest.approx(0.045)
    assert (config.shield.horizon, config.psi) == (20, "!(hazard | collision)")


@pytest.mark.parametrize(
    "text", ["!hazard", "P>=0.9 [ F<=30 hazard ]", "P=? [ G<=30 !hazard ]", "P>=0.9 [ G !hazard ]"]
)
def test_other_properties_are_refused(text):
    with pytest.raises(UserError, match="must have the form"):
        resolve("default", spec=text)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"agent": {"discont": 0.9}}, "unknown setting 'agent.discont'; did you mean 'discount'"),
        ({"agent": 3}, "agent must be a group"),
        ({"agent": {"discount": "high"}}, "agent.discount must be a number, got 'high'"),
        ({"training": {"envs": True}}, "training.envs must be a whole number"),
        ({"training": {"envs": 0}}, "envs must be at least 1"),
        ({"method": "ppo"}, "method must be one of ambs, penl"),
        ({"model": {"size": "xxl"}}, "model.size must be one of xxs"),
        ({"seed": -1}, "seed must be at least 0"),
    ],
)
def test_bad_settings_get_a_sentence(changes, words):
    with pytest.raises(UserError, match=words):
        changed(Config(), changes)


def test_numbers_and_lists_are_taken_as_meant():
    config = changed(Config(), {"agent": {"entropy": 1}, "shield": {"label_threshold": [0.2, 0.3]}})
    assert config.agent.entropy == 1.0
    assert config.shield.label_threshold == (0.2, 0.3)
