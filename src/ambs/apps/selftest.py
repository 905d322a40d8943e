"""Whether acting, shielding and learning work on this machine, and how fast: the quickstart's networks on made-up data.

Nearly all of its time goes into compiling, so that is done without optimisations where there is a choice (on CPUs). The times
are then several times those of a training: they compare machines, and tell that everything works.
"""

import functools
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ambs.acting.act import Player, act, initial_actor_state
from ambs.agent.update import Learned, init
from ambs.config import Config
from ambs.config.resolve import resolve
from ambs.data import Experience
from ambs.nn.compiling import quick_options
from ambs.nn.precision import compute_dtype
from ambs.shield.rules import Decision, Reason
from ambs.spec import Atoms, parse_formula
from ambs.training.learn import learn
from ambs.world_model.model import WorldSpec
from ambs.world_model.vision import ObservationSpec

ENVS, VECTOR, ACTIONS = 8, 16, 2


class Figures(NamedTuple):
    """What was found; times are medians after compiling."""

    act_ms: float
    """One decision for 8 environments, shield idle."""
    shield_ms: float
    """The same with the shield at work."""
    update_ms: float
    """One update of model, policies and critics, two imagined steps long."""
    compile_s: float
    finite: bool
    """Whether actions and losses are finite."""
    fails_safe: bool
    """Whether an observation of NaN makes the shield override, with a finite action."""


def self_test() -> Figures:
    """Act, shield, spoil an observation, learn."""
    # Fewer imagined steps: they are unrolled where they are summed up, and each takes its time to compile.
    config = resolve("quickstart", changes={"agent": {"imagination": 2}})
    spec = WorldSpec(
        ObservationSpec(vector=VECTOR), ACTIONS, Atoms(("hazard",)), parse_formula("!hazard"),
        config.training.action_repeat, config.safety.cost,
    )  # fmt: skip
    begun = time.perf_counter()
    learned = _made_up(jax.eval_shape(lambda key: init(spec, config, discrete=False, key=key), jax.random.key(0)))
    with ThreadPoolExecutor(1) as aside:  # Tracing keeps one core busy, compiling another.
        acting = _compiled(aside, functools.partial(act, config=config, shielded=True, dtype=compute_dtype()))
        decide = _actor(learned, acting)
        learning = _compiled(aside, functools.partial(learn, config=config, dtype=compute_dtype()))
        update = _learner(config, spec, learned, learning)
    sound, spoilt, metrics = decide(), decide(spoil=True), update()
    compile_s = time.perf_counter() - begun
    return Figures(
        act_ms=_median_ms(lambda: decide(shield=False), 7),
        shield_ms=_median_ms(decide, 7),
        update_ms=_median_ms(update, 3),
        compile_s=compile_s,
        finite=bool(np.isfinite(sound.action).all() and all(np.isfinite(value) for value in metrics.values())),
        fails_safe=bool((spoilt.reason == Reason.NON_FINITE).all() and np.isfinite(spoilt.action).all()),
    )


def _made_up(shapes: Any) -> Any:
    """Parameters without compiling what would make them: matrices at random, the rest small."""
    rng = np.random.default_rng(0)

    def fill(leaf: Any) -> Any:
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            return jnp.zeros(leaf.shape, leaf.dtype)
        if leaf.ndim < 2:
            return jnp.full(leaf.shape, 0.1, leaf.dtype)
        return jnp.asarray(rng.normal(size=leaf.shape) / np.sqrt(leaf.shape[-1]), leaf.dtype)

    return jax.tree.map(fill, shapes)


def _compiled(aside: ThreadPoolExecutor, function: Callable[..., Any]) -> Callable[..., Callable[[], Any]]:
    """`begin(*arguments)` traces at once, compiles in the other thread, and returns how to get at the result."""
    options = quick_options()

    def begin(*arguments: Any) -> Callable[[], Any]:
        traced = jax.jit(function).lower(*arguments)
        return aside.submit(traced.compile, compiler_options=options).result

    return begin


def _actor(learned: Learned, compiled: Callable[..., Callable[[], Any]]) -> Callable[..., Decision]:
    behaviour = learned.behaviour
    player = Player(learned.model, behaviour.actors, behaviour.critics, jnp.full(1, 0.5))
    carry = initial_actor_state(player, ENVS)
    seen = np.random.default_rng(0).normal(size=(ENVS, VECTOR)).astype(np.float32)
    labels, first = np.zeros((ENVS, 1), bool), np.ones(ENVS, bool)

    def arguments(shield: bool, vector: np.ndarray) -> tuple[Any, ...]:
        return player, carry, {"vector": vector}, first, labels, np.array(shield), jax.random.key(1), 0

    step = compiled(*arguments(True, seen))

    def decide(shield: bool = True, spoil: bool = False) -> Decision:
        _, decision = step()(*arguments(shield, np.full_like(seen, np.nan) if spoil else seen))
        return jax.device_get(decision)

    return decide


def _learner(
    config: Config, spec: WorldSpec, learned: Learned, compiled: Callable[..., Callable[[], Any]]
) -> Callable[[], Any]:
    """One update at a time, each from the same state."""
    rng = np.random.default_rng(0)
    lead = (1, config.training.batch, config.training.length)
    first = np.zeros(lead, bool)
    first[..., 0] = True
    batch = Experience(
        {"vector": jnp.asarray(rng.normal(size=(*lead, VECTOR)), jnp.float32)},
        jnp.asarray(rng.uniform(-1, 1, (*lead, ACTIONS)), jnp.float32),
        jnp.asarray(rng.normal(size=lead), jnp.float32),
        jnp.asarray(rng.uniform(size=(*lead, spec.frames, 1)) < 0.1),
        jnp.ones(lead),
        jnp.asarray(first),
    )
    arguments = (learned, batch, jax.random.key(2), jnp.array(0))
    step = compiled(*arguments)
    return lambda: jax.device_get(step()(*arguments)[1])


def _median_ms(call: Callable[[], Any], repeats: int) -> float:
    times = []
    for _ in range(repeats):
        begun = time.perf_counter()
        call()
        times.append(time.perf_counter() - begun)
    return float(1000 * np.median(times))
