"""What a survey finds, and that an interface survives a checkpoint."""

import json

import numpy as np
import pytest

from ambs.presets import resolve
from ambs.training.interface import LEAST_DEVIATION, Interface, interface, survey
from ambs.training.loop import make_envs


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


def test_pictures_need_no_survey():
    config = resolve("quickstart", changes={"env": "ambs/PointGoal1-v0", "obs": "vision"})
    envs = make_envs(config, 1)
    plain = interface(envs, config)
    assert survey(envs, plain, seed=0) is plain
    envs.close()
