"""Named settings and how they combine: preset, then semantics, then method, then what the user says."""

import dataclasses
import difflib
import reprlib
import types
import typing
from collections.abc import Mapping
from typing import Any

from ambs.config import AgentConfig, Config, Method, ModelConfig, TrainingConfig
from ambs.errors import UserError
from ambs.shield.config import ShieldConfig, paper_semantics
from ambs.spec.parser import parse_property
from ambs.spec.pctl import Always, Probability

METHODS: tuple[Method, ...] = typing.get_args(Method)
SHIELDED = ("ambs", "penl", "plpg", "copt")
"""Methods whose shield is on unless it is switched off."""


def quickstart() -> Config:
    """`point_world` on two cores, in minutes."""
    return Config(
        env="ambs/PointWorld-v0",
        obs="vector",
        method="copt",
        model=ModelConfig(size="xxs", learning_rate=2e-3, standardise=False, vector_scale=100.0, label_scale=10.0),
        agent=AgentConfig(alpha=1.0, learning_rate=5e-4, imagination=8, imagine_from=64, discount=0.95),
        shield=ShieldConfig(
            safety_level=0.3, approximation_error=0.1, horizon=3, chunk=50, traces=200, discount=0.95, cost=0.8
        ),
        training=TrainingConfig(
            frames=80_000,
            action_repeat=4,
            prefill=800,
            batch=16,
            length=16,
            train_ratio=96.0,
            updates_per_call=6,
            capacity=100_000,
            log_every=2000,
            checkpoint_every=20_000,
            calibrate_every=240,
            calibration_windows=512,
            false_flags=0.01,
        ),
    )


def default() -> Config:
    """The paper's tasks on one GPU in well under an hour: with what has been seen to learn there (docs/experiments.md)."""
    return Config(
        model=ModelConfig(size="xs", learning_rate=3e-4, label_scale=10.0),
        agent=AgentConfig(learning_rate=1e-4, lag_mu=5e-6, lag_sigma=0.0),
        shield=ShieldConfig(cost=0.3),
        training=TrainingConfig(envs=16, batch=8, length=64, train_ratio=64.0, mirror=True, calibration_context=32),
    )


def paper_scale() -> Config:
    """The paper's sizes and amounts."""
    return Config()


PRESETS = {"quickstart": quickstart, "default": default, "paper-scale": paper_scale}


def resolve(
    preset: str = "default",
    *,
    semantics: str = "corrected",
    method: str | None = None,
    size: str | None = None,
    shield: str | None = None,
    spec: str | None = None,
    changes: Mapping[str, Any] | None = None,
) -> Config:
    """The settings of a run; `changes` is a nested mapping of fields, as in a config file, and has the last word."""
    config = PRESETS[_one_of("preset", preset, tuple(PRESETS))]()
    if _one_of("semantics", semantics, ("corrected", "paper")) == "paper":
        config = with_paper_semantics(config)
    config = with_method(config, method or config.method)
    if size is not None:
        config = changed(config, {"model": {"size": size}})
    if spec is not None:
        config = with_spec(config, spec)
    if shield is not None:
        config = changed(config, {"shielded": _one_of("shield", shield, ("on", "off")) == "on"})
    return changed(config, changes or {})


def with_paper_semantics(config: Config) -> Config:
    """What the authors' code did, at the sizes and amounts of `config`."""
    replace = dataclasses.replace
    same = ("safety_level", "approximation_error", "horizon", "discount")
    keep = {name: getattr(config.shield, name) for name in same}
    batch = config.training.batch * config.training.length
    length = min(64, batch)
    return replace(
        config,
        semantics="paper",
        model=replace(config.model, cost_head="two_hot", standardise=False, label_scale=1.0),
        agent=replace(
            config.agent,
            actor_grad="dynamics",
            critic_mean="symlog",
            backup_norm_limit=0.1,
            plpg_stop_gradient=False,
            lag_rule="max",
            lag_mu=5e-9,
            lag_sigma=1e-6,
        ),
        shield=replace(paper_semantics(), rolled=-(-config.shield.horizon // 2), **keep),
        training=replace(
            config.training, time_limit="termination", batch=max(1, batch // length), length=length, mirror=False
        ),
    )


def with_method(config: Config, method: str) -> Config:
    """One of the paper's methods: its policy gradient, and whether the shield is on."""
    _one_of("method", method, METHODS)
    replace = dataclasses.replace
    penalty: Any = "none" if method in ("ambs", "dreamer") else method
    # The Lagrangian counts violations: C = 1, so that its limit d is a number of them.
    shield = replace(config.shield, cost=1.0) if method == "lag" else config.shield
    return replace(
        config,
        method=typing.cast(Method, method),
        agent=replace(config.agent, penalty=penalty),
        shield=shield,
        shielded=method in SHIELDED,
    )


def with_spec(config: Config, text: str) -> Config:
    """Δ, n and Ψ from a property such as `P>=0.9 [ G<=30 !hazard ]`."""
    wanted = parse_property(text)
    path = wanted.path if isinstance(wanted, Probability) else None
    if not isinstance(wanted, Probability) or not isinstance(path, Always) or path.steps is None or not wanted.bound:
        raise UserError(f"spec must have the form 'P>=0.9 [ G<=30 !hazard ]', got {text!r}")
    if wanted.comparison != ">=":
        raise UserError(f"spec must ask for a probability of at least so much (P>=…), got {text!r}")
    level = float(1 - wanted.bound)
    steps = min(config.shield.steps, path.steps) if config.shield.rolled is not None else None
    shield = dataclasses.replace(
        config.shield,
        safety_level=level,
        approximation_error=round(0.9 * level, 12),
        horizon=path.steps,
        rolled=steps,
    )
    return dataclasses.replace(config, shield=shield, psi=str(path.operand))


def to_dict(config: Any) -> dict[str, Any]:
    """Nested plain data, ready for JSON."""
    return dataclasses.asdict(config)


def from_dict(data: Mapping[str, Any]) -> Config:
    """The settings that `to_dict` wrote."""
    return changed(Config(), data)


def changed(config: Any, changes: Mapping[str, Any], where: str = "") -> Any:
    """A copy with some fields, nested ones too, set to other values; unknown names and wrong types are refused."""
    hints = typing.get_type_hints(type(config))
    values = {}
    for name, value in changes.items():
        if name not in hints:
            near = difflib.get_close_matches(name, hints, n=1, cutoff=0.5)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise UserError(f"unknown setting {where + name!r}{hint}")
        old = getattr(config, name)
        if dataclasses.is_dataclass(old):
            if not isinstance(value, Mapping):
                raise UserError(f"{where + name} must be a group of settings, got {_short(value)}")
            values[name] = changed(old, value, f"{where}{name}.")
        else:
            values[name] = _checked(where + name, value, hints[name])
    return dataclasses.replace(config, **values)


def _checked(name: str, value: Any, hint: Any) -> Any:
    """The value, if it is of the wanted kind; whole numbers pass as real ones and lists as tuples."""
    origin, options = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        for option in options:
            try:
                return _checked(name, value, option)
            except UserError:
                continue
    elif origin is typing.Literal:
        if value in options:
            return value
    elif origin is tuple:
        if isinstance(value, (list, tuple)):
            return tuple(_checked(name, item, options[0]) for item in value)
    elif hint is float:
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            try:
                return float(value)
            except OverflowError:
                raise UserError(f"{name} must be a number that is not so large, got {_short(value)}") from None
    elif hint is type(None):
        if value is None:
            return None
    elif isinstance(value, hint) and not (isinstance(value, bool) and hint is int):
        return value
    raise UserError(f"{name} must be {_words(hint)}, got {_short(value)}")


def _short(value: Any) -> str:
    """A value as a sentence can quote it."""
    return reprlib.repr(value) if isinstance(value, (str, list, tuple, dict)) else repr(value)[:60]


def _words(hint: Any) -> str:
    options = typing.get_args(hint)
    if typing.get_origin(hint) is typing.Literal:
        return f"one of {', '.join(map(str, options))}"
    if options and typing.get_origin(hint) is not tuple:
        return " or ".join(_words(option) for option in options)
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "text", type(None): "null"}
    return names.get(hint, "a list of numbers")


def _one_of(name: str, value: str, choices: tuple[str, ...]) -> str:
    if value not in choices:
        near = difflib.get_close_matches(value, choices, n=1, cutoff=0.4)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise UserError(f"{name} must be one of {', '.join(choices)}, got {value!r}{hint}")
    return value
