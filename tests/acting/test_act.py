"""What the actor remembers from decision to decision."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ambs.acting.act import Player, act, initial_actor_state
from ambs.agent.update import init
from ambs.config import Config, ModelConfig
from ambs.shield import Reason, ShieldConfig
from tests.tiny import fresh, quick_jit, spec_of, tiny_sizes

ENVS = 3
FALLBACK = (0.25, -0.75)


@pytest.mark.parametrize("hold", [1, 3])
def test_a_backup_action_is_held_while_the_state_violates(hold):
    """Unsafe from step 2 to 8: a new action at every `hold` steps; safe, unsafe again, or in a new episode: a new one at once."""
    with tiny_sizes():
        settings = ShieldConfig(hold=hold, horizon=2, traces=64, leave="sample", failsafe_after=1)
        config = Config(ModelConfig(size="xxs"), shield=settings)
        learned = init(spec_of()._replace(fallback=FALLBACK), config, discrete=False, key=fresh())
        player = Player(learned.model, learned.behaviour.actors, learned.behaviour.critics, jnp.full(1, 0.5))
        step = quick_jit(partial(act, config=config, shielded=True))
        carry, executed, reasons = initial_actor_state(player, ENVS), [], []
        for t in range(10):
            unsafe = np.array([2 <= t <= 8, False, 2 <= t <= 8 and t != 4])
            is_first = np.array([t in (0, 6), t == 0, t == 0])
            carry, decision = step(
                player, carry, {"vector": np.ones((ENVS, 3), np.float32)}, is_first, unsafe[:, None], np.array(True),
                jax.random.key(1), jnp.array(t),
            )  # fmt: skip
            executed.append(np.asarray(decision.action))
            reasons.append(np.asarray(decision.reason))
        refused_in_a_row(step, player, carry)
    same = [np.array_equal(a, b) for a, b in zip(np.array(executed)[:-1, 0], np.array(executed)[1:, 0], strict=True)]
    # Steps 2, 3, 4 | 5, then a new episode: 6, 7, 8; compared are (0, 1), (1, 2), …
    assert same == ([False] * 9 if hold == 1 else [False, False, True, True, False, False, True, True, False])
    assert (np.array(reasons)[2:9, 0] == Reason.ALREADY_UNSAFE).all()
    left, again = np.array(executed)[:, 2], hold == 3
    assert [np.array_equal(left[t], left[t + 1]) for t in (2, 3, 4, 5, 6)] == [again, False, False, again, again]
    assert not (np.array(reasons)[:, 1] == Reason.ALREADY_UNSAFE).any()


def refused_in_a_row(step, player, carry):
    """The first and third see nothing, the third as an episode begins: first the backup policy's best action for what was
    seen last, then the fallback, whether the shield is on or off; and at the first good observation none of it."""
    blind = np.array([True, False, True])
    best = jax.vmap(lambda latent: player.actors.backup.best(fresh(), latent))(carry.latent)
    start = player.actors.backup.best(fresh(), player.model.rssm.initial())
    for t, active in enumerate((True, False, True, True)):
        seen = np.ones((ENVS, 3), np.float32)
        seen[blind & (t < 3)] = np.nan
        carry, decision = step(
            player, carry, {"vector": seen}, np.array([False, False, True]), np.zeros((ENVS, 1), bool), np.array(active),
            jax.random.key(1), jnp.array(10 + t),
        )  # fmt: skip
        assert (np.asarray(decision.reason == Reason.NON_FINITE) == (blind & (t < 3))).all()
        assert carry.refused.tolist() == [t + 1 if t < 3 else 0, 0, t + 1 if t < 3 else 0]
        if t == 0:
            np.testing.assert_allclose(decision.action[0], best[0], rtol=1e-5)
            np.testing.assert_allclose(decision.action[2], start, rtol=1e-5)
        elif t < 3:
            np.testing.assert_allclose(decision.action[np.array([0, 2])], [FALLBACK] * 2)
        np.testing.assert_array_equal(carry.action, decision.action)
