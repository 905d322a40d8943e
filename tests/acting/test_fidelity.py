"""Clones that are like their policy, a little off, and wrong, against distances that are known beforehand."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ambs.acting.act import Player
from ambs.acting.compare import Comparison
from ambs.acting.fidelity import fidelity, verdict
from ambs.acting.scoring import filtered
from ambs.agent.update import init
from ambs.config.resolve import resolve
from ambs.streams import stream
from tests.tiny import batch_for, filled, fresh, quick_jit, spec_of, tiny_sizes

WINDOWS, CONTEXT, STEPS = 32, 2, 3
CONFIG = resolve("guard", changes={"shield": {"horizon": STEPS, "traces": 64}, "calibration": {"context": CONTEXT}})


@pytest.fixture(scope="module")
def found():
    """What is said of clones whose policy proposes what they do, something off by a tenth of the range, and the opposite."""
    with tiny_sizes():
        spec = spec_of()
        learned = filled(jax.eval_shape(lambda key: init(spec, CONFIG, discrete=False, key=key), fresh()), 1.0)
        player = Player(learned.model, learned.behaviour.actors, learned.behaviour.critics, jnp.full(1, 0.5))
        windows = batch_for(spec, WINDOWS, CONTEXT + STEPS)
        windows = windows._replace(is_first=jnp.zeros((WINDOWS, CONTEXT + STEPS), bool).at[:, 0].set(True))
        key = jax.random.key(3)
        keys = jax.vmap(lambda index: stream(jax.random.fold_in(key, index), "filter"))(jnp.arange(WINDOWS))
        seen = quick_jit(filtered)(player.model, windows, keys)
        modes = jax.vmap(jax.vmap(lambda one: player.actors.task(one).mode()))(seen.features)
        judge = quick_jit(partial(fidelity, config=CONFIG))
        off = jnp.where(modes > 0, modes - 0.2, modes + 0.2)
        gaps = modes.at[1:, 2].set(jnp.nan)
        policies = {"like": modes, "off": off, "wrong": -modes, "gaps": gaps}
        yield (
            {
                name: {
                    what: float(value) for what, value in judge(player, windows._replace(proposed=said), key).items()
                }
                for name, said in policies.items()
            },
            np.asarray(modes),
        )


def test_the_distance_is_the_one_that_was_put_there(found):
    told, modes = found
    assert told["like"]["clone/error"] == pytest.approx(0, abs=1e-6)
    assert told["gaps"]["clone/error"] == pytest.approx(0, abs=1e-6)
    assert told["off"]["clone/error"] == pytest.approx(0.1, abs=1e-6)
    assert told["wrong"]["clone/error"] == pytest.approx(np.abs(modes).mean(), rel=1e-5)
    median = np.median(modes, axis=(0, 1))
    assert told["like"]["clone/blind_error"] == pytest.approx(np.abs(modes - median).mean() / 2, rel=1e-5)


def test_the_first_action_moves_the_risk_the_more_the_less_it_is_the_clones(found):
    told, _ = found
    assert 0 < told["like"]["clone/risk_difference"] < told["wrong"]["clone/risk_difference"]
    assert told["like"]["clone/imagined_error"] < told["wrong"]["clone/imagined_error"]


def test_a_clone_that_is_wrong_is_reported(found):
    told, _ = found
    assert verdict(told["like"]) == ""
    assert "not like the policy" in verdict(told["wrong"])
    assert "Beware: the clone is not like" in str(Comparison({}, clone=told["wrong"]))
    assert "Beware" not in str(Comparison({}, clone=told["like"]))
