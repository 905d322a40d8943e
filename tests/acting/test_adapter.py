"""What a survey finds, and that an interface survives a checkpoint."""

import dataclasses
import json

import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from ambs.acting.adapter import LEAST_DEVIATION, Interface, _fallback, interface, survey
from ambs.acting.ranges import check_level, check_thresholds, executed
from ambs.acting.worlds import make_envs
from ambs.config.resolve import resolve
from ambs.errors import UserError
from ambs.shield import Reason, ShieldConfig
from ambs.spec import Atoms, parse_formula
from ambs.world_model.model import WorldModel, WorldSpec
from ambs.world_model.vision import ObservationSpec
from tests.shield.worlds import accepted
from tests.tiny import fresh, tiny_sizes


@pytest.mark.parametrize("env", ["ambs/PointWorld-v0", "ambs/PointGoal1-v0"])
def test_a_survey_brings_entries_to_one_scale(env):
    """On other random play the standardised entries vary by 1 or so, unless they hardly vary at all."""
    config = resolve("quickstart", changes={"env": env})
    envs = make_envs(config)
    found = survey(envs, interface(envs, config), seed=5)
    raw, _ = envs.reset(seed=77)
    rng, vectors, action = np.random.default_rng(0), [], found.random(np.random.default_rng(1), envs.num_envs)
    for step in range(150):
        if step % 5 == 0:
            action = found.random(rng, envs.num_envs)
        raw, *_ = envs.step(found.to_env(action))
        vectors.append(found.observe(raw)["vector"])
    envs.close()
    seen = found.spec.observation
    values = np.concatenate(vectors)
    logs = np.sign(values) * np.log1p(np.abs(values))
    spread = ((logs - np.array(seen.mean)) / np.array(seen.deviation)).std(axis=0)
    varied = np.array(seen.deviation) > 1.01 * LEAST_DEVIATION
    assert varied.sum() >= 6
    assert (spread[varied] > 0.4).all()
    assert (spread < 2.5).all()
    stored = Interface.from_dict(json.loads(json.dumps(found.to_dict())))
    assert stored.spec == found.spec
    # Whoever resumes sees what the first start saw, and acts in numbers of the environment's own type.
    resumed = interface(envs, config).as_surveyed(stored)
    assert resumed.spec == found.spec
    assert resumed.low.dtype == found.low.dtype == np.float32
    np.testing.assert_array_equal(resumed.to_env(action), found.to_env(action))


def test_an_environment_that_has_changed_is_not_gone_on_with():
    config = resolve("quickstart", changes={"env": "ambs/Grid-v0"})
    envs = make_envs(config)
    found = interface(envs, config)
    for changes, sentence in (
        ({"actions": 4, "fallback": None}, r"its actions is 5, and was 4$"),
        ({"psi": "!goal"}, r"its psi is !hazard, and was !goal$"),
        (
            {"observation": {"image": 0, "vector": 24, "mean": [], "deviation": []}, "seen": None},
            r"its observation is .*25.*, and was .*24",
        ),
    ):
        with pytest.raises(UserError, match=sentence):
            found.as_surveyed(Interface.from_dict(json.loads(json.dumps(found.to_dict())) | changes))


BOX = Interface(
    WorldSpec(ObservationSpec(vector=2), 2, Atoms(("hazard",)), parse_formula("!hazard"), fallback=(0.0, 1.0)),
    False,
    np.array([-0.1, 2.0], np.float32),
    np.array([0.3, 2.0], np.float32),
    (np.array([-1.0, -np.inf]), np.array([1.0, 5.0])),
)
"""Two actions, of which the second has no choice; the first entry of a vector is bounded, the second from above."""
FORGED = {
    "low": ([np.nan, 2.0], [np.inf, 2.0], [-1e308, 2.0], [1.0, 2.0], ["0", 2.0], [0.0], 3, None, [[0.0], 2.0], [True, 2.0]),
    "high": ([0.3, -np.inf], [1e308, 2.0], [0.3, 1.0], []),
    "fallback": ([2.0, 0.0], [np.nan, 0.0], [0.0], "ab", [0.0, 0.0, 0.0], 0.0, [None, 0.0]),
    "actions": (0, -1, 1.5, 10**30, "2", True), "frames": (0, 10**12, 1.0, None), "cost": (0, -1.0, np.inf, np.nan, "1"),
    "discrete": (1, "no", None), "atoms": ("hazard", [1], None), "psi": (3, None),
    "observation": ({}, 3, {"image": 0, "vector": -1, "mean": [], "deviation": []},
                    {"image": 0, "vector": 2, "mean": [0.0, np.nan], "deviation": []},
                    {"image": 0, "vector": 2, "mean": [], "deviation": [1.0, 0.0]}),
    "seen": (3, [[0.0]], [[0.0], [1.0]], [[np.nan, 0.0], [1.0, 1.0]]),
}  # fmt: skip


@pytest.mark.parametrize("name", FORGED)
def test_an_interface_out_of_range_is_refused(name):
    """As JSON has it, where NaN and infinity can be written, too."""
    whole = json.loads(json.dumps(BOX.to_dict()))
    assert Interface.from_dict(whole).to_dict() == BOX.to_dict()
    for value in FORGED[name]:
        with pytest.raises(UserError, match=r"^its "):
            Interface.from_dict(whole | {name: value})
    del whole[name]
    if name == "seen":  # Checkpoints made before do not have it.
        assert Interface.from_dict(whole).seen is None
    else:
        with pytest.raises(UserError, match=f"lacks {name}"):
            Interface.from_dict(whole)


def decision_of(actions):
    """A decision that accepts these actions."""
    return accepted(actions, ShieldConfig(traces=10, rule="fixed"))


def test_what_is_executed_is_finite_and_within_bounds():
    """By hand: −1 … 1 is stretched to −.1 … .3, what lies beyond is cut; NaN is replaced by the fallback, (.1, 2)."""
    found = executed(BOX, decision_of([[-1, 0], [1, 0], [0, 5], [-9, 0], [np.nan, 0], [0, np.inf], [0, -np.inf]]))
    np.testing.assert_allclose(found.action[:, 0], np.float32([-0.1, 0.3, 0.1, -0.1, 0.1, 0.1, 0.1]), atol=1e-7)
    assert (found.action[:, 1] == 2).all()
    assert found.overridden.tolist() == [False] * 4 + [True] * 3
    assert found.reason.tolist() == [Reason.ACCEPTED] * 4 + [Reason.NON_FINITE] * 3
    assert found.action.dtype == np.float32
    assert (found.action[:, 0] <= BOX.high[0]).all()
    assert (found.action[:, 0] >= BOX.low[0]).all()


@pytest.mark.parametrize("bound", [np.nan, np.inf, 1e308])
def test_bounds_that_slipped_through_execute_nothing(bound):
    broken = dataclasses.replace(BOX, low=np.array([bound, 2.0]))
    with np.errstate(all="ignore"), pytest.raises(UserError, match="no action to fall back on"):
        executed(broken, decision_of([[0.5, 0.0]]))


def test_thresholds_above_one_are_refused():
    check_thresholds(np.array([0.5, 1.0]))
    for value in (2.0, 0.0, -1.0, np.nan, np.inf):
        with pytest.raises(UserError, match=r"thresholds must lie in \(0, 1\]"):
            check_thresholds(np.array([0.5, value]))


@pytest.mark.parametrize("level", [-1, 24, 1.5, [3, 3], float("nan")])
def test_levels_that_there_are_not_are_refused(level):
    config = resolve("quickstart")
    assert check_level(np.array(23), config) == 23
    with pytest.raises(UserError, match="level in force"):
        check_level(np.array(level), config)


def test_an_environment_whose_fallback_is_no_action_is_refused():
    config = resolve("quickstart", changes={"env": "ambs/Grid-v0"})
    envs = make_envs(config, 1)
    for action in (-1, 5):
        envs.fallback_action = action
        with pytest.raises(UserError, match="one of the 5 actions"):
            interface(envs, config)
    with pytest.raises(UserError, match="within the action space"):
        _fallback(np.array([2.0]), spaces.Box(-1, 1, (1,)))


@pytest.mark.parametrize(("cameras", "channels"), [("front", 3), ("front+back", 6)])
def test_pictures_need_no_survey(cameras, channels):
    changes = {"env": "ambs/PointGoal1-v0", "obs": "vision", "cameras": cameras}
    config = resolve("quickstart", changes=changes)
    envs = make_envs(config, 1)
    plain = interface(envs, config)
    assert survey(envs, plain, seed=0) is plain
    assert plain.spec.observation == ObservationSpec(64, channels=channels)
    stored = json.loads(json.dumps(plain.to_dict()))
    assert Interface.from_dict(stored).spec == plain.spec
    del stored["observation"]["channels"]  # As checkpoints were before there was a second camera.
    known = Interface.from_dict(stored)
    assert known.spec.observation.channels == 3
    if channels == 3:
        assert plain.as_surveyed(known).spec == plain.spec
    else:
        with pytest.raises(UserError, match=r"its observation is .*6.*, and was .*3"):
            plain.as_surveyed(known)
    envs.close()


def test_worlds_without_cameras_say_so():
    with pytest.raises(UserError, match="ambs/PointWorld-v0 has no option 'cameras'"):
        make_envs(resolve("quickstart", changes={"cameras": "front+back"}), 1)


def test_sensors_that_only_the_decoder_meets():
    """Training worlds show pictures and sensors, others pictures only; what the sensors say never reaches the latents."""
    changes = {"env": "ambs/PointGoal1-v0", "obs": "vision", "model": {"also_predict": "sensors", "standardise": True}}
    config = resolve("quickstart", changes=changes)
    envs = make_envs(config, 2, learning=True)
    found = survey(envs, interface(envs, config), seed=0)
    envs.close()
    seen = found.spec.observation
    assert (seen.image, seen.vector, seen.unseen, len(seen.mean)) == (64, 60, True, 60)
    assert seen.seen == ObservationSpec(64)
    assert Interface.from_dict(json.loads(json.dumps(found.to_dict()))).spec == found.spec
    watched = make_envs(config, 1)
    assert watched.single_observation_space.shape == (64, 64, 3)
    # Who plays and does not learn needs no sensors.
    assert interface(watched, config, learning=False).to_dict()["psi"] == found.to_dict()["psi"]
    watched.close()
    with tiny_sizes():
        model = WorldModel(found.spec, config.model, key=fresh())
        picture, vectors = jnp.full((64, 64, 3), 7, jnp.uint8), (jnp.zeros(60), jnp.ones(60))
        embeddings = [model.encoder({"image": picture, "vector": vector}) for vector in vectors]
        np.testing.assert_array_equal(embeddings[0], model.encoder({"image": picture}))
        np.testing.assert_array_equal(*embeddings)
        assert set(model.decoder(model.rssm.initial().features)) == {"image", "vector"}
    blind = resolve("quickstart", changes={"model": changes["model"]})
    envs = make_envs(blind, 1, learning=True)
    with pytest.raises(UserError, match="for agents that see pictures"):
        interface(envs, blind)
    envs.close()
