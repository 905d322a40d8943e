"""What a labelled environment must do, checked one thing after another, with a sentence for each failure."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium.utils.env_checker import check_env, data_equivalence

from ambs.envs.saving import BOTH, NOT_SAVED, missing
from ambs.envs.spaces import check_action_space, check_fallback, check_observation_space
from ambs.envs.vector.replicas import made_by
from ambs.errors import UserError
from ambs.spec.formula import Atoms, Formula

STEPS = 40


@dataclass(frozen=True)
class Finding:
    """The outcome of one check; `problem` is empty if all is well, and `remark` if there is nothing to know."""

    check: str
    problem: str = ""
    remark: str = ""

    @property
    def ok(self) -> bool:
        """Whether the environment passed."""
        return not self.problem


class Broken(Exception):  # noqa: N818 (said of a contract)
    """A clause of the contract that does not hold, in a sentence."""


def load_factory(name: str, *, here: bool = True) -> Callable[[], gymnasium.Env]:
    """The function meant by `module:factory`; modules in the current folder count too, unless `here` is off."""
    return load_function(name, "an environment", "no environments", here=here)


def load_function(
    name: str, what: str, nothing: str, usable: Callable[[Any], bool] = callable, *, here: bool = True
) -> Any:
    """What stands under `module:name` and is `usable`: a factory of `what`, such as Python's own modules have none."""
    module_name, colon, attribute = name.partition(":")
    if not (module_name and colon and attribute):
        raise UserError(f"{what} factory is written module:factory, got {name!r}")
    if module_name.partition(".")[0] in sys.stdlib_module_names:
        raise UserError(f"module {module_name!r} is part of Python and makes {nothing}")
    if not here:
        _refuse_local(module_name)
    elif module_name not in sys.modules and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise UserError(f"module {module_name!r} cannot be imported: {error}") from error
    except (Exception, SystemExit) as error:
        raise UserError(f"module {module_name!r} cannot be imported: {type(error).__name__}: {error}") from error
    found = getattr(module, attribute, None)
    if not usable(found):
        raise UserError(f"module {module_name!r} has no function {attribute!r}")
    return found


def _refuse_local(module_name: str) -> None:
    """Refuse a module that lies in the current folder, which may be on the path all the same (`python -m ambs`)."""
    try:
        spec = importlib.util.find_spec(module_name.partition(".")[0])
    except (ImportError, ValueError):
        spec = None
    places = list(spec.submodule_search_locations or ()) if spec is not None else []
    places += [spec.origin] if spec is not None and spec.has_location and spec.origin else []
    # Of a link, what counts is where it lies.
    if any(Path(place).absolute().parent.resolve() == Path.cwd().resolve() for place in places):
        raise UserError(f"module {module_name!r} lies in the current folder: name the environment yourself (--env)")


def walk(factory: Callable[[], gymnasium.Env]) -> Iterator[Finding]:
    """Check an environment against the contract; what depends on a failed check is left out."""
    made: list[gymnasium.Env] = []

    def fresh() -> gymnasium.Env:
        made.append(_make(factory))
        return made[-1]

    try:
        for essential, checks in ((True, ESSENTIALS), (False, REST)):
            for name, check in checks.items():
                finding = _run(name, check, fresh)
                yield finding
                if essential and not finding.ok:
                    return
    finally:
        for env in made:
            env.close()


def _run(
    name: str, check: Callable[[Callable[[], gymnasium.Env]], str | None], fresh: Callable[[], gymnasium.Env]
) -> Finding:
    try:
        remark = check(fresh)
    except Broken as broken:
        return Finding(name, str(broken))
    except UserError as error:
        return Finding(name, str(error))
    except (Exception, SystemExit) as error:
        return Finding(name, f"it raised {type(error).__name__}: {error}")
    return Finding(name, remark=remark or "")


def _make(factory: Callable[[], gymnasium.Env]) -> gymnasium.Env:
    env: Any = made_by(factory)
    if not isinstance(env, gymnasium.Env):
        raise Broken(f"the factory must return a gymnasium.Env, and returned {type(env).__name__}")
    return env


def _check_vocabulary(fresh: Callable[[], gymnasium.Env]) -> None:
    env = fresh()
    for attribute, kind in (("atoms", Atoms), ("psi", Formula)):
        if not env.has_wrapper_attr(attribute):
            raise Broken(f"it has no attribute {attribute!r}; ambs.envs.with_labels gives it one")
        if not isinstance(env.get_wrapper_attr(attribute), kind):
            raise Broken(f"its {attribute!r} must be of the type {kind.__name__}")
    names = env.get_wrapper_attr("atoms").names
    unknown = [name for name in env.get_wrapper_attr("psi").atoms() if name not in names]
    if unknown:
        raise Broken(f"Ψ speaks of {', '.join(unknown)}, and the atoms are {', '.join(names)}")


def _check_spaces(fresh: Callable[[], gymnasium.Env]) -> None:
    env = fresh()
    for name in ("observation_space", "action_space"):
        if not isinstance(getattr(env, name, None), gymnasium.Space):
            raise Broken(f"{name} must be a gymnasium space")
    result = env.reset(seed=0)
    if not (isinstance(result, tuple) and len(result) == 2):
        raise Broken("reset must return the pair (observation, info)")
    _check_observation(env, result[0], "reset")
    step: Any = env.step(_actions(env)[0])
    if not (isinstance(step, tuple) and len(step) == 5):
        raise Broken("step must return (observation, reward, terminated, truncated, info)")
    _check_observation(env, step[0], "step")
    if not np.isscalar(step[1]) or not np.isfinite(step[1]):
        raise Broken(f"the reward must be a finite number, got {step[1]!r}")
    for name, flag in (("terminated", step[2]), ("truncated", step[3])):
        if not isinstance(flag, (bool, np.bool_)):
            raise Broken(f"{name} must be a bool, got {type(flag).__name__}")


def _check_observation(env: gymnasium.Env, observation: Any, source: str) -> None:
    space = env.observation_space
    if isinstance(space, gymnasium.spaces.Box):
        got = (getattr(observation, "shape", None), getattr(observation, "dtype", None))
        if got != (space.shape, space.dtype):
            wanted = f"shape {space.shape} and dtype {space.dtype}"
            raise Broken(f"{source} must return an observation of {wanted}, got shape {got[0]} and dtype {got[1]}")
    if observation not in space:
        raise Broken(f"the observation of {source} is not in the observation space {space}")


def _check_labels(fresh: Callable[[], gymnasium.Env]) -> None:
    env = fresh()
    atoms, psi = env.get_wrapper_attr("atoms"), env.get_wrapper_attr("psi")
    for source, info in _infos(env):
        if "labels" not in info:
            raise Broken(f'info["labels"] is missing after {source}')
        labels = info["labels"]
        if not isinstance(labels, np.ndarray) or labels.dtype != bool or labels.shape != (len(atoms),):
            raise Broken(f'info["labels"] must be a bool array of shape ({len(atoms)},) after {source}, got {labels!r}')
        cost = float(not psi.holds(labels, atoms))
        if info.get("cost") != cost:
            raise Broken(f'info["cost"] must be {cost} after {source}, since Ψ judges so; got {info.get("cost")!r}')


def _check_learnable(fresh: Callable[[], gymnasium.Env]) -> None:
    """What `ambs train` would refuse at its start."""
    env = fresh()
    check_observation_space(env.observation_space)
    check_action_space(env.action_space)
    known = env.has_wrapper_attr("fallback_action")
    check_fallback(env.get_wrapper_attr("fallback_action") if known else None, env.action_space)


def _check_determinism(fresh: Callable[[], gymnasium.Env]) -> None:
    first, second = _trace(fresh()), _trace(fresh())
    for step, (one, two) in enumerate(zip(first, second, strict=False)):
        if not data_equivalence(one, two, exact=True):
            raise Broken(f"two runs with the same seed and actions differ at step {step}")
    if len(first) != len(second):
        raise Broken("two runs with the same seed and actions differ in length")


def _check_saving(fresh: Callable[[], gymnasium.Env]) -> str | None:
    env = fresh()
    lacking = missing(env)
    if lacking == BOTH:
        return NOT_SAVED
    if lacking:
        raise Broken(f"saving needs both get_state() and set_state(state), and it has no {lacking[0]}")
    actions = _actions(env)
    env.reset(seed=0)
    _continue(env, actions[: STEPS // 4])
    state = env.get_wrapper_attr("get_state")()
    expected = _continue(env, actions[STEPS // 4 :])
    other = fresh()
    other.reset(seed=1)
    other.get_wrapper_attr("set_state")(state)
    for step, (one, two) in enumerate(zip(expected, _continue(other, actions[STEPS // 4 :]), strict=True)):
        if not data_equivalence(one, two, exact=True):
            raise Broken(f"restored by set_state it goes another way, first seen after {step + 1} steps")
    return None


def _check_gymnasium(fresh: Callable[[], gymnasium.Env]) -> None:
    # Its warnings are advice (of bounds at infinity, say), not faults.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check_env(fresh().unwrapped, skip_render_check=True)


def _actions(env: gymnasium.Env) -> list[Any]:
    env.action_space.seed(0)
    return [env.action_space.sample() for _ in range(STEPS)]


def _infos(env: gymnasium.Env) -> Iterator[tuple[str, dict[str, Any]]]:
    yield "reset", env.reset(seed=0)[1]
    for action in _actions(env):
        *_, terminated, truncated, info = env.step(action)
        yield "step", info
        if terminated or truncated:
            yield "reset", env.reset()[1]


def _trace(env: gymnasium.Env) -> list[Any]:
    observation, info = env.reset(seed=0)
    return [(observation, info["labels"]), *_continue(env, _actions(env))]


def _continue(env: gymnasium.Env, actions: list[Any]) -> list[Any]:
    """What the actions lead to, step by step, episodes being started anew as they end."""
    trace = []
    for action in actions:
        observation, reward, terminated, truncated, info = env.step(action)
        trace.append((observation, float(reward), bool(terminated), bool(truncated), info["labels"]))
        if terminated or truncated:
            env.reset()
    return trace


ESSENTIALS = {"atoms and Ψ": _check_vocabulary, "spaces": _check_spaces, "labels and cost": _check_labels}
REST = {
    "what is learned from": _check_learnable,
    "determinism": _check_determinism,
    "save and restore": _check_saving,
    "Gymnasium's checker": _check_gymnasium,
}
