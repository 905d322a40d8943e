"""Models whose safety probability is known on paper."""

from typing import Any

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from ambs.dynamics import Step
from ambs.shield import Decision, ShieldConfig, ShieldProblem, rollout, shield
from ambs.spec import Atoms, parse_formula
from ambs.streams import stream

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


def accepted(actions: Any, config: ShieldConfig | None = None) -> Decision:
    """The decision of a shield that is switched off, on host; with these actions, be they finite or not."""
    wanted = jnp.asarray(actions, jnp.float32)
    problem, nowhere = coin_problem(0.0, config or ShieldConfig()), jnp.zeros((len(wanted), 1))
    decision = shield(stream(0, "shield"), nowhere, jnp.zeros((len(wanted), 2)), problem, active=False)
    return jax.device_get(decision._replace(action=wanted, proposed=wanted))


class Room(gym.Env):
    """Takes down what it is told to do; its state is of no importance, its observation lies in [0, 1]."""

    def __init__(self, action_space, fallback=None):
        self.action_space, self.observation_space = action_space, spaces.Box(0.0, 1.0, (2,))
        self.atoms, self.psi = ATOMS, PSI
        self.seen, self.labels, self.done = np.zeros(2, np.float32), np.zeros(2, bool), []
        if fallback is not None:
            self.fallback_action = fallback

    def reset(self, *, seed=None, options=None):
        return self.seen, {"labels": self.labels}

    def step(self, action):
        self.done.append(action)
        return self.seen, 0.0, False, False, {"labels": self.labels}


def script(labels: Any, continues: Any = None, probabilities: bool = False) -> Any:
    """A rollout that plays these labels `[time, atoms]` whatever happens."""
    from ambs.shield import Trace

    array = jnp.asarray(labels, jnp.float32 if probabilities else bool)[:, None]
    flags = jnp.ones(array.shape[0]) if continues is None else jnp.asarray(continues, jnp.float32)

    def play(_key: Any, state: Any, _action: Any, _policy: Any) -> Trace:
        return Trace(array, flags, jnp.ones(array.shape[0], bool), state)

    return play
