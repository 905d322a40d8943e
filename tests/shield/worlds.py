"""Models whose safety probability is known on paper."""

from typing import Any

import jax
import jax.numpy as jnp

from ambs.dynamics import Step
from ambs.shield import ShieldConfig, ShieldProblem, rollout
from ambs.spec import Atoms, parse_formula

ATOMS = Atoms(("hazard", "collision"))
PSI = parse_formula("!hazard & !collision", ATOMS)


def coin(key: Any, state: Any, action: Any) -> Step:
    """A robot that stumbles into a hazard with probability `action[0]` in every step: μ = (1 − p)^T."""
    hit = jax.random.uniform(key) < action[0]
    return Step(state + action[1:], jnp.stack([hit, jnp.zeros((), bool)])[None], jnp.ones(()))


def constant(value: list[float]) -> Any:
    return lambda _key, _state: jnp.array(value)


def coin_problem(p: float, config: ShieldConfig, **extra: Any) -> ShieldProblem:
    """Shield on the coin world; policy keeps the risk p, backup has none."""
    return ShieldProblem(
        **{
            "rollout_fn": rollout(coin, config.steps),
            "policy": constant([p, 0.0]),
            "backup": constant([0.0, 0.5]),
            "psi": PSI,
            "atoms": ATOMS,
            "config": config,
            **extra,
        }
    )


def script(labels: Any, continues: Any = None, probabilities: bool = False) -> Any:
    """A rollout that plays these labels `[time, atoms]` whatever happens."""
    from ambs.shield import Trace

    array = jnp.asarray(labels, jnp.float32 if probabilities else bool)[:, None]
    flags = jnp.ones(array.shape[0]) if continues is None else jnp.asarray(continues, jnp.float32)

    def play(_key: Any, state: Any, _action: Any, _policy: Any) -> Trace:
        return Trace(array, flags, jnp.ones(array.shape[0], bool), state)

    return play
