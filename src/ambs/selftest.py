"""Whether acting, shielding and learning work on this machine, and how fast: the quickstart's networks on made-up data.

The measurements take a few seconds; compiling what is measured takes longer.
"""

import functools
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ambs.agent.update import Learned, init
from ambs.config import Config
from ambs.nn.precision import compute_dtype
from ambs.presets import resolve
from ambs.shield.decide import Decision, Reason
from ambs.spec import Atoms, parse_formula
from ambs.training.act import Player, act, initial_carry
from ambs.training.learn import learn
from ambs.world_model.loss import Sequence
from ambs.world_model.model import Spec
from ambs.world_model.vision import ObservationSpec

ENVS, VECTOR, ACTIONS = 8, 16, 2
QUICK = {"xla_backend_optimization_level": 0, "xla_cpu_use_fusion_emitters": False}
"""For what runs once; known to CPUs only."""


class Figures(NamedTuple):
    """What was found; times are medians after compiling."""

    act_ms: float
    """One decision for 8 environments, shield idle."""
    shield_ms: float
    """The same with the shield at work."""
    update_ms: float
    """One update of model, policies and critics."""
    compile_s: float
    finite: bool
    """Whether actions and losses are finite."""
    fails_safe: bool
    """Whether an observation of NaN makes the shield override, with a finite action."""


def self_test() -> Figures:
    """Act, shield, spoil an observation, learn."""
    config = resolve("quickstart")
    training = config.training
    cost = config.shield.cost
    spec = Spec(
        ObservationSpec(vector=VECTOR), ACTIONS, Atoms(("hazard",)), parse_formula("!hazard"), training.action_repeat, cost
    )  # fmt: skip
    options = QUICK if jax.default_backend() == "cpu" else {}
    begun = time.perf_counter()
    fresh = jax.jit(lambda key: init(spec, config, discrete=False, key=key), compiler_options=options)
    learned: Learned = fresh(jax.random.key(0))
    decide = _actor(config, learned)
    sound, spoilt = decide(), decide(spoil=True)
    update = _learner(config, spec, learned)
    metrics = update()
    compile_s = time.perf_counter() - begun
    return Figures(
        act_ms=_median_ms(lambda: decide(shield=False), 20),
        shield_ms=_median_ms(decide, 20),
        update_ms=_median_ms(update, 3),
        compile_s=compile_s,
        finite=bool(np.isfinite(sound.action).all() and all(np.isfinite(value) for value in metrics.values())),
        fails_safe=bool((spoilt.reason == Reason.NON_FINITE).all() and np.isfinite(spoilt.action).all()),
    )


def _actor(config: Config, learned: Learned) -> Callable[..., Decision]:
    behaviour = learned.behaviour
    player = Player(learned.model, behaviour.actors, behaviour.critics, jnp.full(1, 0.5))
    carry = initial_carry(player, ENVS)
    step = jax.jit(functools.partial(act, config=config, shielded=True, dtype=compute_dtype()))
    seen = np.random.default_rng(0).normal(size=(ENVS, VECTOR)).astype(np.float32)
    labels, first = np.zeros((ENVS, 1), bool), np.ones(ENVS, bool)

    def decide(shield: bool = True, spoil: bool = False) -> Decision:
        vector = np.full_like(seen, np.nan) if spoil else seen
        _, decision = step(player, carry, {"vector": vector}, first, labels, np.array(shield), jax.random.key(1), 0)
        return jax.device_get(decision)

    return decide


def _learner(config: Config, spec: Spec, learned: Learned) -> Callable[[], Any]:
    """One update at a time, each from the same state."""
    rng = np.random.default_rng(0)
    lead = (1, config.training.batch, config.training.length)
    first = np.zeros(lead, bool)
    first[..., 0] = True
    batch = Sequence(
        {"vector": jnp.asarray(rng.normal(size=(*lead, VECTOR)), jnp.float32)},
        jnp.asarray(rng.uniform(-1, 1, (*lead, ACTIONS)), jnp.float32),
        jnp.asarray(rng.normal(size=lead), jnp.float32),
        jnp.asarray(rng.uniform(size=(*lead, spec.frames, 1)) < 0.1),
        jnp.ones(lead),
        jnp.asarray(first),
    )
    step = jax.jit(functools.partial(learn, config=config, dtype=compute_dtype()))
    return lambda: jax.device_get(step(learned, batch, jax.random.key(2), jnp.array(0))[1])


def _median_ms(call: Callable[[], Any], repeats: int) -> float:
    times = []
    for _ in range(repeats):
        begun = time.perf_counter()
        call()
        times.append(time.perf_counter() - begun)
    return float(1000 * np.median(times))
