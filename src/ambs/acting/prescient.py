"""Bounded-prescience shielding: the simulator itself in place of the world model, for evaluation in worlds that can be saved.

Before every action each environment is saved, and futures are played from there in copies of it, with other chance than it will
have: the proposed action, then the task policy on what it really sees. The same rule counts them, so the theorems speak of the
world and not of a model of it. Slow: traces × steps of simulation a decision.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ambs.acting.agent import Agent
from ambs.acting.real_futures import can_branch, failing
from ambs.envs.saving import NOT_SAVED
from ambs.envs.snapshot import one_env
from ambs.errors import UserError
from ambs.shield.rules import Decision, Reason, judge_counts, rule
from ambs.spec.parser import parse_path
from ambs.spec.pctl import Verdict
from ambs.streams import at, stream


class Prescient:
    """A shield around an agent that was started without one, in environments `envs` that are being played."""

    def __init__(self, agent: Agent, envs: Any, seed: int = 0) -> None:
        if agent.imagined is not None or max(agent.config.shield.latch, agent.config.shield.hold) > 1:
            raise UserError(
                "a prescient shield knows neither latch nor hold, nor a policy that is imagined: leave them out"
            )
        if not envs.can_save or not all(can_branch(one_env(envs.get_state(), env)) for env in range(envs.num_envs)):
            raise UserError(
                f"a prescient shield plays futures in the world itself, and this one cannot be saved: {NOT_SAVED}"
            )
        self.agent, self.envs, self.seed = agent, envs, seed
        self.rule = rule(agent.config.shield)
        self.copies = agent.worlds(self.rule.chunk)
        self.player = Agent(agent.player, agent.interface, agent.config, agent.worlds)
        self.player.start(self.rule.chunk, seed, shield=False)
        best = agent.config.shield.leave == "mode"
        self._backup = jax.jit(
            lambda player, keys, latent, unsafe: jnp.where(
                unsafe[:, None] & best,
                jax.vmap(player.actors.backup.best)(keys, latent),
                jax.vmap(player.actors.backup.act)(keys, latent),
            )
        )

    def act(self, observation: Any, labels: np.ndarray, proposed: Any = None) -> Decision:
        """Decide; the environments' own state and chance stay as they are."""
        agent, step = self.agent, self.agent.steps
        decision = agent.act(observation, labels, proposed)
        saved = self.envs.get_state()
        wanted, latent = np.array(agent.raw_proposed), jax.tree.map(np.asarray, agent.memory.latent)
        found = [self._judge(env, one_env(saved, env), latent, wanted, labels, step) for env in range(agent.batch)]
        reason, used, violating = (np.array(part) for part in zip(*found, strict=True))
        # What the agent itself could not trust stays overridden.
        reason = np.where(decision.overridden, decision.reason, reason)
        overridden = reason != Reason.ACCEPTED
        keys = jax.vmap(lambda env: jax.random.fold_in(at(stream(agent.root, "prescient"), step), env))(
            jnp.arange(agent.batch)
        )
        instead = np.asarray(self._backup(agent.player, keys, agent.memory.latent, reason == Reason.ALREADY_UNSAFE))
        ours = overridden & ~np.asarray(decision.overridden)
        action = np.where(_beside(ours, decision.action), agent.interface.to_env(instead), decision.action)
        agent.observe(action, ours)
        look = np.maximum(used // self.rule.chunk - 1, 0)
        bounds = np.stack([self.rule.low[look, violating], self.rule.high[look, violating]], axis=-1)
        rows: dict[str, Any] = {
            "action": action,
            "overridden": overridden,
            "reason": reason,
            "traces_used": used,
            "violating": violating,
            "p_safe": np.where(
                used > 0, 1 - violating / np.maximum(used, 1), (reason == Reason.ACCEPTED).astype(float)
            ),
            "interval": np.where(used[:, None] > 0, bounds, decision.interval),
        }
        return decision._replace(**rows)

    def _judge(
        self, env: int, own: Any, latent: Any, wanted: np.ndarray, labels: np.ndarray, step: int
    ) -> tuple[int, int, int]:
        """Reason, traces used and violating ones for one environment; whatever fails in the simulator overrides."""
        settled = self._settled(labels[env])
        if settled is not None:
            return int(settled), 0, 0
        chunk, violating = self.rule.chunk, 0
        here = jax.tree.map(lambda leaf: leaf[env], latent)
        for look, drawn in enumerate(self.rule.looks):
            seeds = [[self.seed, step, env, drawn - chunk + number] for number in range(chunk)]
            root = jax.random.fold_in(at(stream(self.player.root, "futures"), step), env * len(self.rule.looks) + look)
            try:
                failed = failing(self.player, self.copies, own, here, wanted[env], seeds, root, labels[env])
            except UserError:
                return int(Reason.NON_FINITE), drawn, violating
            violating += int(failed.sum())
            reason = int(judge_counts(self.rule, look, violating))
            if reason != Reason.UNDECIDED:
                return reason, drawn, violating
        raise AssertionError("a rule decides at its last look")

    def _settled(self, labels: np.ndarray) -> Reason | None:
        """What the current state alone settles."""
        spec, config = self.agent.interface.spec, self.agent.config.shield
        if not config.check_initial:
            return None
        if config.path is None:
            return None if bool(spec.psi.holds(labels, spec.atoms)) else Reason.ALREADY_UNSAFE
        verdict = int(parse_path(config.path, spec.atoms).on_traces(labels[None], spec.atoms))
        return {Verdict.FALSE: Reason.ALREADY_UNSAFE, Verdict.TRUE: Reason.ACCEPTED}.get(Verdict(verdict))

    def close(self) -> None:
        """Stop the copies."""
        self.copies.close()


def _beside(mask: np.ndarray, values: Any) -> np.ndarray:
    """The mask `[envs]` with as many axes as the values have."""
    return mask.reshape(-1, *(1,) * (np.ndim(values) - 1))
