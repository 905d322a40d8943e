"""A shield around your own policy: a Gymnasium wrapper that executes what the shield lets through."""

import dataclasses
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np

from ambs.shield.runtime import Parts, shield
from ambs.shield.simulator import simulator_state
from ambs.streams import at, stream


class Shielded(gym.Wrapper):
    """`step(action)` proposes; the shield decides; `info["shield"]` holds the `Decision` and `info["action"]` what was done.

    The action of last resort is the environment's `fallback_action`, if it declares one and `parts` does not.
    `read_state(env, observation)` gives the state that the model in `parts` starts from; by default a snapshot of the
    environment itself, for `simulator_dynamics`. Decisions draw from the stream "shield" under `seed` and from nothing
    else, so the environment's own noise is the same with and without the shield.
    """

    def __init__(
        self,
        env: gym.Env,
        parts: Parts,
        *,
        read_state: Callable[[gym.Env, Any], Any] = simulator_state,
        seed: int = 0,
    ) -> None:
        super().__init__(env)
        if parts.fallback is None:
            parts = dataclasses.replace(parts, fallback=getattr(env.unwrapped, "fallback_action", None))
        self.parts = parts
        self.read_state = read_state
        self._stream = stream(seed, "shield")
        self._decisions = 0
        self._decide = jax.jit(lambda key, state, proposed, labels: shield(key, state, proposed, parts, labels))
        self._observation: Any = None
        self._labels: Any = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset the environment; the shield's stream goes on."""
        self._observation, info = self.env.reset(seed=seed, options=options)
        self._labels = info["labels"]
        return self._observation, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Propose an action."""
        if self._observation is None:
            raise gym.error.ResetNeeded("call reset before step")
        state = jax.tree.map(lambda part: jnp.asarray(part)[None], self.read_state(self.env, self._observation))
        key = at(self._stream, self._decisions)
        decision = self._decide(key, state, jnp.asarray(action)[None], jnp.asarray(self._labels)[None])
        self._decisions += 1
        executed = np.asarray(decision.action[0])
        observation, reward, terminated, truncated, info = self.env.step(executed)
        self._observation, self._labels = observation, info["labels"]
        return observation, reward, terminated, truncated, {**info, "shield": decision, "action": executed}
