"""How the task policy's gradient knows about safety (paper, Sec. 4 and App. F): values with one signature.

A penalty weighs the reward advantage, weighs the cost advantage, and may keep state (the Lagrangian's λ and μ). The policy
ascends  reward_weight·A_r − cost_weight·A_c.  Arrays are `[time, traces]` over imagined traces of H steps, entry t belonging
to the action taken in s_t.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ambs.config import AgentConfig
from ambs.config.checks import one_of

sg = jax.lax.stop_gradient


PRINTED_COST = 10.0
"""C of the paper."""


class Multiplier(NamedTuple):
    """State of the augmented Lagrangian; carried, unused, by the other penalties."""

    lam: Float[Array, ""]
    mu: Float[Array, ""]


class Imagined(NamedTuple):
    """What a penalty may look at; the time axis has the H actions from s_0 to s_{H−1}."""

    cost_next: Float[Array, "time traces"]
    """c_{t+1}: cost of the state that a_t leads to."""
    cost_return: Float[Array, "time traces"]
    """C^λ_t, not normalised."""
    safe_value: Float[Array, "time_and_one traces"]
    """Cost value of the backup policy in s_0 … s_H."""
    safety_value_end: Float[Array, "traces"]
    """Safety critics' V(s_H)."""


class Weights(NamedTuple):
    """Factors of the advantages, per action."""

    reward: Float[Array, "time traces"]
    cost: Float[Array, "time traces"]
    raw_cost: bool
    """Whether the cost advantage stays un-normalised (Lagrangian)."""


class Penalty(NamedTuple):
    """`init() -> Multiplier`, `apply(Imagined, Multiplier) -> Weights`, `step(Multiplier, mean cost return) -> Multiplier`."""

    init: Callable[[], Multiplier]
    apply: Callable[[Imagined, Multiplier], Weights]
    step: Callable[[Multiplier, Float[Array, ""]], Multiplier]


def penalty(config: AgentConfig, horizon: int, cost: float, discount: float) -> Penalty:
    """The penalty of these settings; T is the shield's, C and γ are everybody's."""
    return PENALTIES[one_of("penalty", config.penalty, PENALTIES)](config, horizon, cost, discount)


def none() -> Penalty:
    """Plain policy gradient (Eq. 6)."""
    return _stateless(lambda seen: (jnp.ones_like(seen.cost_next), jnp.zeros_like(seen.cost_next)))


def penl(alpha: float) -> Penalty:
    """Penalty critic (Eq. 7): G_t − α·G^C_t."""
    return _stateless(lambda seen: (jnp.ones_like(seen.cost_next), jnp.full_like(seen.cost_next, alpha)))


def plpg(alpha: float, cost: float, *, stop_gradient: bool = True) -> Penalty:
    """Probabilistic logic policy gradient (Eq. 9): sg(exp(min(δ_t, 0)))·G_t − α·G^C_t.

    δ_t = −(c_{t+1} + V_safe(s_{t+1}) − V_safe(s_t)) with the backup policy's cost value, in units in which C = 10 as printed,
    whatever C is: an exponent knows no other scale. Weights in [1e-6, 1].
    """

    def weights(seen: Imagined) -> tuple[Array, Array]:
        delta = -(PRINTED_COST / cost) * (seen.cost_next + seen.safe_value[1:] - seen.safe_value[:-1])
        weight = jnp.clip(jnp.exp(jnp.minimum(delta, 0.0)), 1e-6, 1.0)
        return (sg(weight) if stop_gradient else weight), jnp.full_like(delta, alpha)

    return _stateless(weights)


def copt(alpha: float, kappa: float, discount: float, horizon: int, cost: float) -> Penalty:
    """Counter-example guided policy optimisation (Eq. 10–12): sg(1 − W_t)·G_t − α·G^C_t, W_t = σ((cost_t − γ^{T−1}C)/κ)."""
    threshold = discount ** (horizon - 1) * cost

    def weights(seen: Imagined) -> tuple[Array, Array]:
        trace_cost = remaining_cost(seen.cost_next, jnp.clip(seen.safety_value_end, 0, cost), discount)
        counter_example = jax.nn.sigmoid((trace_cost - threshold) / kappa)
        return sg(1 - counter_example), jnp.full_like(trace_cost, alpha)

    return _stateless(weights)


def remaining_cost(
    cost_next: Float[Array, "time *traces"], value_end: Float[Array, "*traces"], discount: float
) -> Float[Array, "time *traces"]:
    """cost(s_t) = Σ_{k=1}^{H−t} γ^{k−1}·c_{t+k} + γ^{H−t}·V(s_H) for every t (Eq. 10)."""

    def backward(later: Array, cost: Array) -> tuple[Array, Array]:
        total = cost + discount * later
        return total, total

    _, totals = jax.lax.scan(backward, value_end, cost_next, reverse=True, unroll=True)
    return totals


def lagrangian(start: float, mu: float, sigma: float, limit: float, *, per_state: bool = False) -> Penalty:
    """Augmented Lagrangian (App. F) on raw cost returns: the weight on the cost gradient is ψ' = max(0, λ + μ·g).

    g = mean C^λ − d, or with `per_state` each state's own C^λ − d, as the paper's code has it; then μ ← max{μ(1+σ), 1}
    instead of min{μ(1+σ), 1}.
    """

    def apply(seen: Imagined, state: Multiplier) -> Weights:
        excess = sg(seen.cost_return) - limit
        gap = excess if per_state else jnp.broadcast_to(excess.mean(), excess.shape)
        return Weights(jnp.ones_like(excess), jnp.maximum(0.0, state.lam + state.mu * gap), True)

    def step(state: Multiplier, mean_cost_return: Float[Array, ""]) -> Multiplier:
        grown = state.mu * (1 + sigma)
        lam = jnp.maximum(0.0, state.lam + state.mu * (mean_cost_return - limit))
        return Multiplier(lam, jnp.maximum(grown, 1.0) if per_state else jnp.minimum(grown, 1.0))

    return Penalty(lambda: Multiplier(jnp.asarray(start, float), jnp.asarray(mu, float)), apply, step)


def lagrangian_objective(state: Multiplier, gap: Float[Array, ""]) -> Float[Array, ""]:
    """ψ(λ, μ) of App. F for g = cost return − d; its derivative in g is the weight that `lagrangian` applies."""
    active = state.lam + state.mu * gap >= 0
    return jnp.where(active, state.lam * gap + state.mu * gap**2 / 2, -(state.lam**2) / (2 * state.mu))


def _stateless(weights: Callable[[Imagined], tuple[Array, Array]]) -> Penalty:
    def apply(seen: Imagined, _state: Multiplier) -> Weights:
        return Weights(*weights(seen), False)

    return Penalty(lambda: Multiplier(jnp.zeros(()), jnp.zeros(())), apply, lambda state, _mean: state)


PENALTIES: dict[str, Callable[[AgentConfig, int, float, float], Penalty]] = {
    "none": lambda _config, _horizon, _cost, _discount: none(),
    "lag": lambda config, _horizon, _cost, _discount: lagrangian(
        config.lag_start, config.lag_mu, config.lag_sigma, config.lag_limit, per_state=config.lag_rule == "max"
    ),
    "penl": lambda config, _horizon, _cost, _discount: penl(config.penalty_weight),
    "plpg": lambda config, _horizon, cost, _discount: plpg(
        config.penalty_weight, cost, stop_gradient=config.plpg_stop_gradient
    ),
    "copt": lambda config, horizon, cost, discount: copt(
        config.penalty_weight, config.kappa * cost, discount, horizon, cost
    ),
}
"""By name: the penalty of an agent's settings, the horizon T, the cost C and γ; the names are those of `ambs.config.METHODS`."""
