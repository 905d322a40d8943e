"""Accept or override: decision rules as integer counts, and what a decision tells (Alg. 2, last lines).

Every rule is a table: at these numbers of traces it looks; it accepts at or below one count of violating traces, overrides
at or above another, and overrides at its last look whatever it has not accepted. The fixed-m rule looks once.
"""

import enum
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PyTree

from ambs.config.checks import short, whole
from ambs.errors import UserError
from ambs.shield.config import ShieldConfig
from ambs.shield.hold import Memory
from ambs.shield.traces import CRITIC, NO_ATOM, Evidence
from ambs.spec.bounds import accept_count, clopper_pearson
from ambs.spec.formula import Atoms
from ambs.spec.sequential import characteristics


class Reason(enum.IntEnum):
    """Why a decision came out as it did."""

    ACCEPTED = 0
    TOO_RISKY = 1
    """So many traces violate that the action is rejected."""
    NOT_SHOWN_SAFE = 2
    """All traces are drawn and the evidence does not suffice."""
    DEADLINE = 3
    """Time was up before the evidence sufficed."""
    ALREADY_UNSAFE = 4
    """The current state violates Ψ; no trace was drawn."""
    NON_FINITE = 5
    """A non-finite number took part; nothing it says can be trusted."""
    UNDECIDED = 6
    """Still looking; never in a finished decision."""
    LATCHED = 7
    """The backup policy stays in control for some steps after it took over; no trace was drawn."""


@dataclass(frozen=True)
class Rule:
    """Looks (traces drawn so far) with their counts, and exact intervals `[looks, violating]` valid at every look."""

    looks: tuple[int, ...]
    accept: tuple[int, ...]
    override: tuple[int, ...]
    low: np.ndarray
    high: np.ndarray

    @property
    def chunk(self) -> int:
        """Traces drawn between two looks."""
        return self.looks[0]

    @property
    def traces(self) -> int:
        """Most traces a decision can use."""
        return self.looks[-1]


class Counts(NamedTuple):
    """The counts of a rule alone, which may change from call to call."""

    accept: Int[Array, "looks"]
    override: Int[Array, "looks"]


@functools.lru_cache(maxsize=32)
def ladder(config: ShieldConfig) -> tuple[Rule, ...]:
    """The rules of all levels that calibration may put in force (`ShieldConfig.levels`); they look at the same numbers."""
    return tuple(rule(config.at_level(level)) for level in config.levels())


@functools.lru_cache(maxsize=32)
def accepted_risks(config: ShieldConfig) -> tuple[float, ...]:
    """For every level the chance of a violating trace at which its rule accepts in one case of two."""
    return tuple(_even_chance(one) for one in ladder(config))


def _even_chance(rule: Rule) -> float:
    low, high = 0.0, 1.0
    thresholds = tuple(zip(rule.accept, rule.override, strict=True))
    for _ in range(20):
        middle = (low + high) / 2
        if characteristics(rule.looks, thresholds, 1 - middle).accept >= 0.5:
            low = middle
        else:
            high = middle
    return low


def counts_at(config: ShieldConfig, level: Int[Array, ""] | None) -> Counts:
    """The counts of the level with this number, or those of the settings themselves."""
    if level is None:
        own = rule(config)
        return Counts(jnp.asarray(own.accept), jnp.asarray(own.override))
    rules = ladder(config)
    return Counts(*(jnp.asarray([getattr(one, name) for one in rules])[level] for name in Counts._fields))


@functools.lru_cache(maxsize=64)
def rule(config: ShieldConfig) -> Rule:
    """The decision rule of these settings."""
    if not isinstance(config, ShieldConfig):
        raise UserError(f"a rule is that of a ShieldConfig, got {short(config)}")
    return _with_intervals(*TABLES[config.rule](config), config.failure_probability)


def _sequential(config: ShieldConfig) -> "Table":
    test = config.betting_test()
    return test.looks, test.thresholds()


def _fixed(config: ShieldConfig) -> "Table":
    accept = accept_count(config.safety_level, config.approximation_error, config.traces)
    return (config.traces,), ((accept, accept + 1),)


Table = tuple[tuple[int, ...], tuple[tuple[int, int], ...]]
"""Looks, and for each the count of violating traces up to which it accepts and that from which it overrides."""
TABLES: dict[str, Callable[[ShieldConfig], Table]] = {"sequential": _sequential, "fixed": _fixed}
"""By the names of `ambs.shield.config.RULES`; the inspector's page has the same in inspector-rules.js."""


def _with_intervals(looks: tuple[int, ...], thresholds: tuple[tuple[int, int], ...], delta: float) -> Rule:
    # δ is shared among the looks: intervals that are read when the rule happens to stop must hold at every stop.
    low, high = np.zeros((2, len(looks), looks[-1] + 1), np.float32)
    for row, look in enumerate(looks):
        low[row, : look + 1], high[row, : look + 1] = clopper_pearson(look, np.arange(look + 1), delta / len(looks))
    accept, override = zip(*thresholds, strict=True)
    return Rule(looks, accept, override, low, high)


def judge_counts(rule: Rule | Counts, look: Any, violating: Any) -> Int[Array, "*counts"]:
    """The reason with which the rule stops at its look number `look`, or UNDECIDED; an integer comparison."""
    accepted = violating <= jnp.asarray(rule.accept)[look]
    rejected = violating >= jnp.asarray(rule.override)[look]
    otherwise = jnp.where(look == len(rule.accept) - 1, int(Reason.NOT_SHOWN_SAFE), int(Reason.UNDECIDED))
    return jnp.where(accepted, int(Reason.ACCEPTED), jnp.where(rejected, int(Reason.TOO_RISKY), otherwise))


def replay(rule: Rule, violating: np.ndarray) -> tuple[Reason, int]:
    """What the rule says about stored traces in their order (True: violating), and how many of them it used.

    Where the stored traces end before the rule would stop, the reason is UNDECIDED.
    """
    totals = np.cumsum(violating, dtype=int)
    for index, look in enumerate(rule.looks):
        if look > totals.size:
            return Reason.UNDECIDED, int(totals.size)
        count = totals[look - 1]
        if count <= rule.accept[index]:
            return Reason.ACCEPTED, look
        if count >= rule.override[index]:
            return Reason.TOO_RISKY, look
    return Reason.NOT_SHOWN_SAFE, rule.traces


class Decision(NamedTuple):
    """What the shield did and why, batched over environments."""

    action: PyTree
    """Executed: the proposed action, or the backup's; always finite."""
    overridden: Bool[Array, "envs"]
    p_safe: Float[Array, "envs"]
    """Share of the drawn traces that satisfy Ψ all along: μ̃."""
    interval: Float[Array, "envs 2"]
    """Exact 1 − δ interval for the chance that a trace is judged safe, valid although the rule chooses when to stop. That
    chance is the model's μ̂ only where `ShieldConfig.caveat` is empty."""
    traces_used: Int[Array, "envs"]
    violating: Int[Array, "envs"]
    reason: Int[Array, "envs"]
    """Codes of `Reason`."""
    evidence: Evidence
    """What the traces showed, `[envs, traces]`."""
    proposed: PyTree
    """What the task policy wanted."""
    memory: Memory
    """For the next decision in these environments."""

    def explain(self, env: int, atoms: Atoms, config: ShieldConfig | None = None) -> str:
        """One sentence on the decision for environment number `env`; with the config, what the theorems do not cover."""
        env = whole("env", env, 0, len(self.reason) - 1)
        sentence = self._sentence(env, atoms)
        return f"{sentence} ({config.caveat})" if config is not None and config.caveat else sentence

    def _sentence(self, env: int, atoms: Atoms) -> str:
        reason = Reason(int(self.reason[env]))
        used, violating = int(self.traces_used[env]), int(self.violating[env])
        counted = f"{violating} of {used} imagined futures break the safety formula"
        match reason:
            case Reason.ALREADY_UNSAFE:
                return "override: the current state already violates the safety formula"
            case Reason.NON_FINITE:
                return "override: a non-finite number took part in the decision, so nothing it says can be trusted"
            case Reason.LATCHED:
                return "override: the backup policy stays in control for some steps after it took over"
            case Reason.ACCEPTED:
                return f"accept: {counted}" if used else "accept: no future had to be imagined"
        first = np.asarray(self.evidence.first_violation[env])
        steps = first[first > 0]
        text = f"override: {counted}"
        if steps.size:
            codes = np.asarray(self.evidence.atom[env])[first > 0]
            names = [_culprit(int(code), atoms) for code in np.unique(codes)[::-1] if code != NO_ATOM]
            by = f", by {' and '.join(names)}" if names else ""
            text += f", first after {steps.min()} steps (median {int(np.median(steps))}){by}"
        extra = {
            Reason.NOT_SHOWN_SAFE: "; that is not enough evidence to accept",
            Reason.DEADLINE: "; time was up before the evidence sufficed",
        }
        return text + extra.get(reason, "")


def _culprit(code: int, atoms: Atoms) -> str:
    return "a safety critic's estimate" if code == CRITIC else atoms.names[code]
