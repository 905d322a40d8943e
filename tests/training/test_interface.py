"""What a survey finds, and that an interface survives a checkpoint."""

import json

import jax.numpy as jnp
import numpy as np
import pytest

from ambs.errors import UserError
from ambs.presets import resolve
from ambs.training.interface import LEAST_DEVIATION, Interface, interface, survey
from ambs.training.loop import make_envs
from ambs.world_model.model import WorldModel
from ambs.world_model.vision import ObservationSpec
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
        ({"actions": 4}, r"its actions is 5, and was 4$"),
        ({"psi": "!goal"}, r"its psi is !hazard, and was !goal$"),
        (
            {"observation": {"image": 0, "vector": 24, "mean": [], "deviation": []}},
            r"its observation is .*25.*, and was .*24",
        ),
    ):
        with pytest.raises(UserError, match=sentence):
            found.as_surveyed(Interface.from_dict(json.loads(json.dumps(found.to_dict())) | changes))


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
