"""The true simulator as the shield's model: bounded-prescience shielding of any environment that can save and restore.

An environment takes part if it has `atoms`, `get_state()` and `set_state()`, puts `labels` into `info` and draws its noise
from Gymnasium's `np_random`. Its state travels through JAX as one vector of bits, so nothing is rounded. Each future gets
noise of its own: with the saved generator every future would be the one that is about to happen.
"""

from typing import Any, NamedTuple

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key

from ambs.config.checks import short
from ambs.dynamics import Dynamics, Step
from ambs.envs.saving import missing
from ambs.envs.snapshot import Snapshot, pack, unpack
from ambs.errors import UserError


class SimulatorState(NamedTuple):
    """A snapshot as a state to shield from."""

    bits: Any
    """The packed snapshot, uint32 `[words]`."""
    observation: Any
    """What the policies see there."""
    sound: Any
    """1.0; NaN if any number in the snapshot is not finite, which its bits alone would not show."""


def simulator_state(env: gym.Env, observation: Any) -> SimulatorState:
    """Where the environment is now."""
    return jax.tree.map(jnp.asarray, _state(_saved(env), observation))


def simulator_dynamics(env: gym.Env) -> Dynamics:
    """(key, SimulatorState, action) -> Step by a private copy of the simulator, which must have been reset once.

    Steps run on the host one after the other: exact, not fast. A step that raises, say because the policy has made an action
    of NaN, is not sound, and the shield overrides. Environments that call JAX while they step (to render, say)
    cannot be used here.
    """
    layout = _saved(env)
    get_state, set_state = env.get_wrapper_attr("get_state"), env.get_wrapper_attr("set_state")
    atoms = len(env.get_wrapper_attr("atoms"))
    example = _state(layout, env.observation_space.sample())
    shapes = (
        jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(np.shape(leaf), np.asarray(leaf).dtype), example),
        jax.ShapeDtypeStruct((1, atoms), jnp.bool_),
        jax.ShapeDtypeStruct((), jnp.bool_),
    )

    def on_host(seed: Any, bits: Any, action: Any) -> tuple[SimulatorState, np.ndarray, np.ndarray]:
        try:
            return play(seed, bits, action)
        except Exception:  # As unsound as NaN, and it must not keep the shield from overriding.
            broken = example._replace(sound=np.float32(np.nan))
            return broken, np.zeros((1, atoms), bool), np.array(True)

    def play(seed: Any, bits: Any, action: Any) -> tuple[SimulatorState, np.ndarray, np.ndarray]:
        set_state(unpack(np.asarray(bits), layout))
        env.unwrapped.np_random = np.random.default_rng(np.asarray(seed))
        observation, reward, terminated, _, info = env.step(np.asarray(action))
        state = _state(get_state(), observation, reward)
        return state, np.asarray(info["labels"], bool)[None], np.array(not terminated)

    def step(key: Key[Array, ""], state: SimulatorState, action: Any) -> Step:
        seed = jax.random.bits(key, (4,), jnp.uint32)
        following, labels, continues = jax.pure_callback(
            on_host, shapes, seed, state.bits, action, vmap_method="sequential"
        )
        return Step(following, labels, continues)

    return step


def _state(snapshot: Snapshot, observation: Any, reward: Any = 0.0) -> SimulatorState:
    floats = [array for array in snapshot.values() if np.issubdtype(array.dtype, np.floating)]
    sound = np.isfinite(reward) and all(np.isfinite(array).all() for array in floats)
    observed = jax.tree.map(
        lambda part: np.asarray(part, jax.dtypes.canonicalize_dtype(np.asarray(part).dtype)), observation
    )
    return SimulatorState(pack(snapshot), observed, np.float32(1.0 if sound else np.nan))


def _saved(env: gym.Env) -> Snapshot:
    if not isinstance(env, gym.Env):
        raise UserError(f"a model is made of a gymnasium.Env, got {short(env)}")
    lacking = [*(() if env.has_wrapper_attr("atoms") else ("atoms",)), *missing(env)]
    if lacking:
        raise UserError(f"{type(env.unwrapped).__name__} cannot serve as a model: it lacks {', '.join(lacking)}")
    return env.get_wrapper_attr("get_state")()
