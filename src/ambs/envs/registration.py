"""The environments' names with Gymnasium, such as `ambs/PointGoal1-v0`, and how to make one or many of them."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec, load_env_creator

from ambs.config.checks import checked, is_among, short
from ambs.envs.vector.replicas import Factory
from ambs.envs.vector.vector import LabelledVectorEnv
from ambs.errors import UserError

NAMESPACE = "ambs"
SAFETY_GYM = "ambs.envs.safety_gym.env:SafetyGym"
TASK_NAMES = ("PointGoal0", "PointGoal1", "PointGoal2", "CarGoal0", "CarGoal1")
SMALL_WORLDS = {
    "PointWorld": "ambs.envs.worlds.point_world:PointWorldEnv",
    "Grid": "ambs.envs.worlds.grid:GridEnv",
}


def register_all(tasks: Iterable[str] = TASK_NAMES) -> None:
    """Tell Gymnasium about our environments, of Safety Gym about these tasks; no code is imported before one is made."""
    entries: dict[str, tuple[str, dict[str, Any]]] = {name: (SAFETY_GYM, {"task": name}) for name in tasks}
    entries |= {name: (entry_point, {}) for name, entry_point in SMALL_WORLDS.items()}
    for name, (entry_point, options) in entries.items():
        env_id = f"{NAMESPACE}/{name}-v0"
        if env_id not in gymnasium.registry:
            gymnasium.register(env_id, entry_point=entry_point, kwargs=options)


def registered() -> tuple[str, ...]:
    """Ids of all our environments, in order of registration."""
    return tuple(env_id for env_id in gymnasium.registry if env_id.startswith(f"{NAMESPACE}/"))


def full_id(name: str) -> str:
    """The registered id meant by `name`: `ambs/PointGoal1-v0`, or for short `PointGoal1`."""
    if not isinstance(name, str):
        raise UserError(f"an environment is meant by its name, such as 'PointGoal1', got {name!r}")
    for candidate in (name, f"{NAMESPACE}/{name}", f"{NAMESPACE}/{name}-v0"):
        if candidate in gymnasium.registry:
            return candidate
    near = difflib.get_close_matches(name, (*registered(), *TASK_NAMES, *SMALL_WORLDS), n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise UserError(f"unknown environment {name!r}; ours are {', '.join(registered())}{hint}")


def make(name: str, **options: Any) -> gymnasium.Env:
    """Make a registered environment by its id or short name."""
    mode = options.get("render_mode")
    if mode is not None and not isinstance(mode, str):
        raise UserError(f"render_mode must be text or None, got {short(mode)}")
    if mode == "human":
        from ambs.envs.safety_gym.env import has_display

        if not has_display():
            raise UserError('render_mode "human" needs a display, and there is none here; use "rgb_array"')
    entry = gymnasium.spec(full_id(name))
    creator = _creator(entry)
    if not _takes_anything(creator):
        _refuse_unknown(options, entry.id, creator, gymnasium.make)
    try:
        return gymnasium.make(entry.id, **options)
    except gymnasium.error.Error as error:
        raise UserError(f"{entry.id} cannot be made here: {error}") from error


def make_vector(env: str | Factory, num_envs: int, **options: Any) -> LabelledVectorEnv:
    """Many copies of an environment: one of ours by name, or a labelled one by its factory or as `"module:factory"`.

    Safety Gym's tasks run in threads (options: `ThreadedVectorEnv`), our small worlds one after the other, and what a
    factory makes in processes (`ProcessVectorEnv`), or with `serial=True` one after the other too (`SerialVectorEnv`).
    All take `spec`, which replaces Ψ, `action_repeat`, `max_faults`, and `observation`: "vision", "vector" or "both". Small
    worlds have vectors only; what a factory makes shows what it shows.
    """
    if not isinstance(env, str) and not callable(env):
        raise UserError(f"an environment is meant by its name, such as 'PointGoal1', or by a factory, got {env!r}")
    if not isinstance(env, str) or ":" in env:
        return _many_foreign(env, num_envs, **options)
    entry = gymnasium.spec(full_id(env))
    if entry.id not in registered():
        raise UserError(f"{entry.id} is none of our environments; pass a factory that makes it, with labels")
    if entry.entry_point != SAFETY_GYM:
        return _many_small(entry, num_envs, **options)
    from ambs.envs.safety_gym.threaded import ThreadedVectorEnv

    _refuse_unknown(options, env, ThreadedVectorEnv)
    return ThreadedVectorEnv(entry.kwargs["task"], num_envs, **options)


def _many_foreign(
    env: str | Factory, num_envs: int, *, serial: bool = False, observation: str | None = None, **options: Any
) -> LabelledVectorEnv:
    from ambs.envs.contract import load_factory
    from ambs.envs.vector.processes import ProcessVectorEnv
    from ambs.envs.vector.serial import SerialVectorEnv

    del observation
    kind = SerialVectorEnv if checked("serial", serial, bool) else ProcessVectorEnv
    _refuse_unknown(options, str(env), kind)
    return kind(load_factory(env) if isinstance(env, str) else env, num_envs, **options)


def _many_small(entry: EnvSpec, num_envs: int, *, observation: str = "vector", **options: Any) -> LabelledVectorEnv:
    from ambs.envs.vector.serial import SerialVectorEnv

    if not is_among(observation, ("vector",)):
        raise UserError(f'{entry.id} has no pictures: its observation must be "vector", got {observation!r}')
    _refuse_unknown(options, entry.id, SerialVectorEnv, load_env_creator(str(entry.entry_point)))
    own = {name: options.pop(name) for name in set(options) - _options(SerialVectorEnv)}
    own.setdefault("render_mode", "rgb_array")
    # Bare: the wrappers of gymnasium.make watch over what is checked here anyway.
    return SerialVectorEnv(lambda: gymnasium.make(entry.id, **own).unwrapped, num_envs, **options)


def _refuse_unknown(options: dict[str, Any], env: str, *makers: Callable[..., Any]) -> None:
    known = sorted(set().union(*map(_options, makers)))
    for name in options:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise UserError(f"{env} has no option {name!r}; it has {', '.join(known)}{hint}")


def _creator(entry: EnvSpec) -> Callable[..., Any]:
    """What makes a registered environment; a UserError where it needs what is not installed."""
    point: Any = entry.entry_point
    try:
        return load_env_creator(point) if isinstance(point, str) else point
    except ImportError as error:
        raise UserError(f"{entry.id} cannot be made here: {error}") from error


def _takes_anything(maker: Callable[..., Any]) -> bool:
    return any(one.kind is one.VAR_KEYWORD for one in inspect.signature(maker).parameters.values())


def _options(maker: Callable[..., Any]) -> set[str]:
    required = inspect.Parameter.empty
    own = {name for name, parameter in inspect.signature(maker).parameters.items() if parameter.default is not required}
    return own.union(_options(maker.options)) if hasattr(maker, "options") else own
