"""A shield around your own policy: a Gymnasium wrapper that executes what the shield lets through."""

import dataclasses
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np

from ambs.config.checks import LARGEST, short, whole
from ambs.errors import UserError
from ambs.forks import refuse_after_fork
from ambs.shield.actions import allowed, last_resort, outside, proposal
from ambs.shield.hold import begun_anew, no_memory
from ambs.shield.problem import ShieldProblem
from ambs.shield.rules import Decision, Reason
from ambs.shield.shield import shield
from ambs.shield.simulator import simulator_state
from ambs.streams import at, stream


class Shielded(gym.Wrapper):
    """`step(action)` proposes; the shield decides; `info["shield"]` holds the `Decision` and `info["action"]` what was done.

    A proposal beyond the bounds of the action space is cut to them before the shield looks at it. One that is no action at
    all, and an observation or labels outside what the environment declares, are refused: the backup policy acts, and
    `info["refused"]` says what is wrong. The backup's action is cut, too, and whatever is to be executed is checked last: what
    is not in the action space is replaced by the action of last resort.

    In place of a `problem` a guard will do, whose model has learned to watch over a policy (`ambs.acting.guard`).

    The action of last resort is the environment's `fallback_action`, if it declares one and `problem` does not; else zeros.
    `read_state(env, observation)` gives the state that the model in `problem` starts from; by default a snapshot of the
    environment itself, for `simulator_dynamics`. Decisions draw from the stream "shield" under `seed` and from nothing
    else, so the environment's own noise is the same with and without the shield.
    """

    def __new__(cls, env: gym.Env, problem: Any, **options: Any) -> Any:
        """Around a guard (`ambs.load(run).guard(policy)`) the environment that it decides in, which takes no options."""
        if hasattr(problem, "shielded"):
            if options:
                raise UserError(
                    f"around a guard Shielded takes nothing but environment and guard, got {', '.join(options)}"
                )
            return problem.shielded(env)
        return super().__new__(cls)

    def __init__(
        self,
        env: gym.Env,
        problem: ShieldProblem,
        *,
        read_state: Callable[[gym.Env, Any], Any] = simulator_state,
        seed: int = 0,
    ) -> None:
        _check(env, problem, read_state)
        super().__init__(env)
        refuse_after_fork()
        if problem.fallback is None:
            found = env.get_wrapper_attr("fallback_action") if env.has_wrapper_attr("fallback_action") else None
            problem = dataclasses.replace(problem, fallback=found)
        self.problem = problem
        self._resort = last_resort(problem.fallback, env.action_space)
        self.read_state = read_state
        self._stream = stream(whole("seed", seed, 0, LARGEST), "shield")
        self._decisions = 0
        self._decide = jax.jit(
            lambda key, state, proposed, labels, trusted, memory: shield(
                key, state, proposed, problem, labels, trusted=trusted, memory=memory
            )
        )
        self._memory = no_memory(self._resort[None])
        self._observation: Any = None
        self._labels: Any = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset the environment; the shield's stream goes on."""
        self._observation, info = self.env.reset(seed=seed, options=options)
        self._labels = info.get("labels")
        self._memory = begun_anew(self._memory, jnp.ones(1, bool))
        return self._observation, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Propose an action."""
        if self._observation is None:
            raise gym.error.ResetNeeded("call reset before step")
        refuse_after_fork()
        state = jax.tree.map(lambda part: jnp.asarray(part)[None], self.read_state(self.env, self._observation))
        key = at(self._stream, self._decisions)
        proposed, refused = proposal(action, self.env.action_space)
        labels, unknown = self._known_labels()
        refused = refused or unknown or outside(self._observation, self.env.observation_space)
        wanted = jnp.asarray(self._resort if proposed is None else proposed)[None]
        trusted = jnp.array([not refused])
        decision = self._decide(key, state, wanted, jnp.asarray(labels)[None], trusted, self._memory)
        self._decisions += 1
        decision, executed = self._executed(decision)
        self._memory = decision.memory._replace(action=jnp.asarray(executed)[None])
        observation, reward, terminated, truncated, info = self.env.step(executed)
        self._observation, self._labels = observation, info.get("labels")
        told = {"shield": decision, "action": executed, "refused": refused}
        return observation, reward, terminated, truncated, {**info, **told}

    def _known_labels(self) -> tuple[np.ndarray, str]:
        """The labels of the current state and nothing; or some and what is wrong with them."""
        labels, wanted = self._labels, (len(self.problem.atoms),)
        known = isinstance(labels, np.ndarray) and labels.dtype == bool and labels.shape == wanted
        if known and not np.ma.is_masked(labels):
            return labels, ""
        return np.zeros(wanted, bool), f"the labels must be a bool array of shape {wanted}, got {str(labels)[:40]}"

    def _executed(self, decision: Decision) -> tuple[Decision, np.ndarray]:
        """The last check of all: the action as the environment takes it, in its space; and the decision that says so."""
        executed = allowed(decision.action[0], self.env.action_space)
        if executed is None:
            resort: dict[str, Any] = {"overridden": np.ones(1, bool), "reason": np.array([int(Reason.NON_FINITE)])}
            memory = decision.memory._replace(
                held=jnp.zeros_like(decision.memory.held), refused=self._memory.refused + 1
            )
            return decision._replace(action=self._resort[None], memory=memory, **resort), self._resort
        return decision._replace(action=executed[None]), executed


def _check(env: Any, problem: Any, read_state: Any) -> None:
    """Refuse arguments of a wrong kind, and a problem that speaks of other labels than the environment's."""
    if not isinstance(env, gym.Env):
        raise UserError(f"Shielded needs a gymnasium.Env, got {short(env)}")
    if not isinstance(problem, ShieldProblem):
        raise UserError(f"Shielded needs a ShieldProblem, got {short(problem)}")
    if not callable(read_state):
        raise UserError(f"read_state must be a function of environment and observation, got {short(read_state)}")
    atoms = env.get_wrapper_attr("atoms") if env.has_wrapper_attr("atoms") else problem.atoms
    if atoms != problem.atoms:
        ours, theirs = (", ".join(one.names) for one in (problem.atoms, atoms))
        raise UserError(f"the shield's atoms must be the environment's, {theirs}, and are {ours}")
