"""A backup action that is held while the state violates Ψ, a backup policy that stays: by hand, behind every shield."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from ambs.shield import Reason, ShieldConfig, Shielded, ShieldProblem, no_memory, shield, shield_with_deadline
from ambs.shield.hold import begun_anew, hold
from ambs.streams import at, stream
from tests.shield.worlds import ATOMS, Room, coin_problem

KEY = stream(0, "shield")
UNSAFE = [t in (1, 2, 3, 4, 5, 7, 8, 9, 10, 11) for t in range(12)]
BEGINS, REFUSED = 9, 10
"""Steps at which an episode begins, and an observation is refused."""
WANTED = 0.5
EXECUTED = {
    1: [WANTED, 1, 2, 3, 4, 5, WANTED, 7, 8, 9, 10, 11],
    # Three steps each; a safe state, a new episode and a refusal let go of it.
    3: [WANTED, 1, 1, 1, 4, 4, WANTED, 7, 7, 9, 10, 11],
}
"""The backup wants the number of the step. With `hold` = 1 it gets it."""


def problem_with(hold: int) -> ShieldProblem:
    config = ShieldConfig(horizon=2, traces=64, hold=hold)
    return coin_problem(0.0, config, backup=lambda _key, state: jnp.stack([0 * state[0], state[0]]))


@pytest.mark.parametrize(("steps", "kind"), [(1, "shield"), (3, "shield"), (3, "deadline")])
def test_a_sequence_by_hand(steps, kind):
    problem = problem_with(steps)
    if kind == "shield":
        decide = jax.jit(lambda *given, **masks: shield(*given[:3], problem, *given[3:], **masks))
    else:
        decide = shield_with_deadline(problem, 1e9)
    memory, executed, reasons = no_memory(jnp.zeros((2, 2))), [], []
    for t, unsafe in enumerate(UNSAFE):
        memory = memory._replace(held=jnp.where(t == BEGINS, 0, memory.held))
        labels = jnp.array([[unsafe, False], [False, False]])
        trusted = jnp.array([t != REFUSED, True])
        wanted = jnp.array([[0.0, WANTED]] * 2)
        decision = decide(at(KEY, t), jnp.full((2, 1), float(t)), wanted, labels, trusted=trusted, memory=memory)
        memory = decision.memory
        executed.append(np.asarray(decision.action)[:, 1])
        reasons.append(np.asarray(decision.reason))
        np.testing.assert_array_equal(memory.action, decision.action)
    assert np.array(executed)[:, 0].tolist() == EXECUTED[steps]
    assert (np.array(executed)[:, 1] == WANTED).all()
    expected = [Reason.ALREADY_UNSAFE if unsafe else Reason.ACCEPTED for unsafe in UNSAFE]
    expected[REFUSED] = Reason.NON_FINITE
    assert np.array(reasons)[:, 0].tolist() == expected


@pytest.mark.parametrize(("steps", "kind"), [(1, "shield"), (3, "shield"), (3, "deadline")])
def test_the_backup_policy_stays_in_control(steps, kind):
    """By hand: what is proposed is risky at steps 1 and 6, what comes after is not; an episode begins at step 7."""
    problem = coin_problem(0.0, ShieldConfig(horizon=2, traces=64, latch=steps))
    plain = jax.jit(lambda *given, **masks: shield(*given[:3], problem, *given[3:], **masks))
    decide = plain if kind == "shield" else shield_with_deadline(problem, 1e9)
    memory, reasons = no_memory(jnp.zeros((1, 2))), []
    for t in range(9):
        memory = begun_anew(memory, jnp.array([t == 7]))
        wanted = jnp.array([[1.0 if t in (1, 6) else 0.0, 0.0]])
        decision = decide(at(KEY, t), jnp.zeros((1, 1)), wanted, jnp.zeros((1, 2), bool), memory=memory)
        memory = decision.memory
        reasons.append(int(decision.reason[0]))
        assert bool(decision.overridden[0]) == (reasons[-1] != Reason.ACCEPTED)
        assert decision.traces_used[0] == (0 if reasons[-1] == Reason.LATCHED else 64)
    expected = [Reason.ACCEPTED] * 9
    expected[1] = expected[6] = Reason.TOO_RISKY
    expected[2 : 1 + steps] = [Reason.LATCHED] * (steps - 1)
    assert reasons == expected
    assert steps == 1 or "stays in control" in decision._replace(reason=np.array([Reason.LATCHED])).explain(0, ATOMS)


def test_a_refusal_does_not_hand_control_back():
    problem = coin_problem(0.0, ShieldConfig(horizon=2, traces=64, latch=4))
    risky, calm, labels = jnp.array([[1.0, 0.0]]), jnp.zeros((1, 2)), jnp.zeros((1, 2), bool)
    memory, reasons = no_memory(jnp.zeros((1, 2))), []
    for t in range(5):
        trusted = jnp.array([t != 1])
        wanted = risky if t == 0 else calm
        decision = shield(at(KEY, t), jnp.zeros((1, 1)), wanted, problem, labels, trusted=trusted, memory=memory)
        memory = decision.memory
        reasons.append(int(decision.reason[0]))
    assert reasons == [Reason.TOO_RISKY, Reason.NON_FINITE, Reason.LATCHED, Reason.LATCHED, Reason.ACCEPTED]


def test_the_wrapper_holds_too():
    room = Room(spaces.Box(0.0, 20.0, (2,)))
    wrapped = Shielded(room, problem_with(3), read_state=lambda env, _seen: jnp.array([float(len(env.done))]))
    wrapped.reset()
    for t in range(12):
        if t == BEGINS:
            wrapped.reset()
        room.labels = np.array([t + 1 < 12 and UNSAFE[t + 1], False])
        wrapped.step(np.zeros(3) if t == REFUSED else np.array([0.0, WANTED]))
    assert [float(action[1]) for action in room.done] == EXECUTED[3]
    assert wrapped._decide._cache_size() == 1


def test_what_is_not_finite_is_not_held():
    """Nor does anything else count than the last action and the steps that are left, by hand."""
    action = jnp.arange(8.0).reshape(4, 2)
    memory = no_memory(action)._replace(action=(-action - 1).at[3, 1].set(jnp.nan), held=jnp.array([2, 0, 1, 5]))
    found, left = hold(jnp.array([True, True, False, True]), action, memory, 4)
    assert found.tolist() == [[-1, -2], [2, 3], [4, 5], [6, 7]]
    assert left.tolist() == [1, 3, 0, 3]
