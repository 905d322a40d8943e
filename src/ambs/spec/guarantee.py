"""What Theorems 1-3 promise at given settings, as plain values and in a sentence."""

import math
from typing import Any

from ambs.errors import UserError
from ambs.spec import bounds


def guarantee(
    *,
    safety_level: float,
    approximation_error: float,
    failure_probability: float,
    horizon: int,
    traces: int,
    decisions: int = 500,
    kl: float | None = None,
) -> dict[str, Any]:
    """For a shield with Δ, ε, δ, n and m: what each theorem asks for, whether it is met, and what cannot be measured.

    `decisions` are those of an episode, for the guarantee on all of them; `kl` is a surrogate of the model's error (nats).
    """
    if kl is not None and not math.isfinite(bounds.state_divergence_bound(kl)):
        raise UserError(f"--kl must be a finite number of nats, got {kl}")
    accept = bounds.accept_count(safety_level, approximation_error, traces)
    report: dict[str, Any] = {
        "settings": {
            "safety_level": safety_level,
            "approximation_error": approximation_error,
            "failure_probability": failure_probability,
            "horizon": horizon,
            "traces": traces,
            "decisions": decisions,
        },
        "theorem1": _sampling(approximation_error, failure_probability, traces, decisions, model=False),
        "theorem2": _sampling(approximation_error, failure_probability, traces, decisions, model=True),
    }
    split = bounds.kl_premise_unequal_split(approximation_error, failure_probability, horizon, traces)
    report["theorem2"] |= {
        "alpha_needed": _rounded(bounds.kl_premise(approximation_error, horizon)),
        "alpha_needed_chain_rule": _rounded(bounds.kl_premise_chain_rule(approximation_error, horizon)),
        "alpha_needed_unequal_split": None if split is None else _rounded(split),
        "alpha_needed_binary_kl": {
            str(count): _rounded(bounds.kl_premise_binary(safety_level, failure_probability, horizon, traces, count))
            for count in sorted({0, accept})
        },
        "premise": "not measurable",
        "kl_surrogate": kl,
    }
    report["theorem3"] = {
        "premise": "not measurable",
        "says": "the KL between belief states bounds the KL between states, so Theorem 2's premise may be put on beliefs",
    }
    report["accept"] = {
        "max_violating": accept,
        "traces": traces,
        "probability_at": {
            f"{mu:g}": float(f"{bounds.acceptance_probability(mu, accept, traces):.3g}")
            for mu in (1 - safety_level, 1 - safety_level + approximation_error)
        },
    }
    return report


def in_words(report: dict[str, Any]) -> str:
    """The theorems' verdicts of a `guarantee`, in a clause."""
    one, two = (
        f"asks for {found['traces_needed']} futures and is {'met' if found['met'] else 'not met'}"
        for found in (report["theorem1"], report["theorem2"])
    )
    return f"Theorem 1 {one}, Theorem 2 {two}, and its premise on the model is not measurable"


def _sampling(epsilon: float, delta: float, traces: int, decisions: int, *, model: bool) -> dict[str, Any]:
    needed = bounds.traces_needed(epsilon, delta, model=model)
    return {
        "traces_needed": needed,
        "met": traces >= needed,
        "epsilon_achieved": _rounded(bounds.epsilon_achieved(traces, delta, model=model)),
        "delta_achieved": _rounded(bounds.delta_achieved(traces, epsilon, model=model)),
        "traces_needed_one_sided": bounds.traces_needed(epsilon, delta, model=model, sides=1),
        "traces_needed_per_episode": bounds.traces_needed(epsilon, delta, model=model, decisions=decisions),
    }


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")
