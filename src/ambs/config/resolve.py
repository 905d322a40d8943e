"""How settings combine: preset, then semantics, then method, then what the user says; and to plain data and back."""

import dataclasses
import difflib
import typing
from collections.abc import Callable, Mapping
from typing import Any

from ambs.config.checks import checked, function, one_of, short, types_of
from ambs.config.methods import METHODS
from ambs.config.migration import MOVED, completed, migrated
from ambs.config.presets import PRESETS
from ambs.config.settings import Config, SafetyConfig
from ambs.errors import UserError
from ambs.shield.config import ShieldConfig, margin, paper_semantics
from ambs.spec.formula import Atoms
from ambs.spec.parser import parse_formula, parse_property
from ambs.spec.pctl import Always, Path, Probability, Until

SEMANTICS = ("corrected", "paper")


def resolve(
    preset: str = "default",
    *,
    semantics: str | None = None,
    method: str | None = None,
    size: str | None = None,
    shield: str | None = None,
    spec: str | None = None,
    changes: Mapping[str, Any] | None = None,
    say: Callable[[str], None] | None = None,
) -> Config:
    """The settings of a run; `changes` is a nested mapping of fields, as in a config file, and has the last word but for `spec`:
    what is asked for is not to be dropped for what a file once was.

    A method or semantics in `changes` is applied as such, with all that belongs to it; what contradicts it is refused. `say` is
    told, in a sentence, where `spec` changes what it does not name.
    """
    changes = {} if changes is None else changes
    if not isinstance(changes, Mapping):
        raise UserError(f"changes must be a mapping of settings, such as {{'seed': 3}}, got {short(changes)}")
    if say is not None:
        function("say", say, "that takes a sentence")
    config = PRESETS[one_of("preset", preset, PRESETS)]()
    if _agreed("semantics", semantics, changes, SEMANTICS, config.semantics) == "paper":
        config = with_paper_semantics(config)
    config = with_method(config, _agreed("method", method, changes, METHODS, config.method))
    if size is not None:
        config = changed(config, {"model": {"size": size}})
    if shield is not None:
        config = changed(config, {"shielded": one_of("shield", shield, ("on", "off")) == "on"})
    _refuse_contradictions(config, changes)
    found = changed(config, migrated(changes))
    if found.psi is not None:
        parse_formula(found.psi)
    if spec is None:
        return found
    asked = with_spec(found, spec)
    if say is not None:
        _tell_margin(say, found.shield, asked.shield)
    return asked


def _tell_margin(say: Callable[[str], None], usual: ShieldConfig, found: ShieldConfig) -> None:
    error, level = found.approximation_error, found.safety_level
    if error < usual.approximation_error:
        say(f"ε must be below Δ = {level:g}: it is {error:g} instead of {usual.approximation_error:g}")


def _agreed(name: str, told: str | None, changes: Mapping[str, Any], choices: Any, usual: str) -> str:
    """A choice that may be told directly and among the changes; both must say the same."""
    if told is not None:
        one_of(name, told, choices)
    if name not in changes:
        return usual if told is None else told
    changed_to = one_of(name, changes[name], choices)
    if told not in (None, changed_to):
        raise UserError(f"{name} is asked to be {told}, but the file or changes say {name} {changed_to}")
    return changed_to


def _refuse_contradictions(config: Config, changes: Mapping[str, Any]) -> None:
    """`config` has its method and semantics already; a penalty that is not the method's is refused by `Config` itself."""
    shield = changes.get("shield")
    there = shield.get("semantics", config.semantics) if isinstance(shield, Mapping) else config.semantics
    if there != config.semantics:
        raise UserError(f"semantics is {config.semantics}, but shield.semantics is {short(there)}")
    for old, new in MOVED.items():
        values = [value for value in (_value(changes, old), _value(changes, new)) if value is not None]
        if len(values) == 2 and values[0] != values[1]:
            raise UserError(f"{new} is {short(values[1])}, but {old}, its earlier name, is {short(values[0])}")
    wanted = changes.get("shielded", config.shielded)
    if isinstance(wanted, bool) and wanted != config.shielded:
        usual, other = ("on", "off") if config.shielded else ("off", "on")
        raise UserError(
            f"method {config.method} is to have its shield {usual}, but shielded is {str(wanted).lower()}: "
            f"say --shield {other} (shield={other!r}) if you mean it"
        )


def _value(changes: Mapping[str, Any], name: str) -> Any:
    """The setting of a dotted name, or None."""
    group, last = name.split(".")
    found = changes.get(group)
    return found.get(last) if isinstance(found, Mapping) else None


def with_paper_semantics(config: Config) -> Config:
    """What the authors' code did, at the sizes and amounts of `config`."""
    replace = dataclasses.replace
    same = ("safety_level", "approximation_error", "horizon")
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
        safety=replace(config.safety, cost=SafetyConfig().cost),
        shield=replace(paper_semantics(), rolled=-(-config.shield.horizon // 2), **keep),
        training=replace(
            config.training,
            time_limit="termination",
            batch=max(1, batch // length),
            length=length,
            mirror=False,
            early_ratio=None,
        ),
    )


def with_method(config: Config, name: str) -> Config:
    """One of the paper's methods: its policy gradient, whether the shield is on, and its own settings."""
    method = METHODS[one_of("method", name, METHODS)]
    agent = dataclasses.replace(config.agent, penalty=method.penalty)
    named = dataclasses.replace(config, method=typing.cast(Any, name), agent=agent, shielded=method.shielded)
    return changed(named, method.changes)


def with_spec(config: Config, text: str, atoms: Atoms | None = None, *, any_path: bool = False) -> Config:
    """Δ, n and Ψ from a property such as `P>=0.9 [ G<=30 !hazard ]`, or Ψ alone from a formula such as `!hazard`.

    All else stays: ε too, unless Δ does not exceed it (`margin`). With `any_path`, other bounded path formulas than G are taken,
    too: for a shield, not for learning, which needs a Ψ. With `atoms`, others are refused.
    """
    wanted = parse_property(text, atoms)
    if not isinstance(wanted, Probability):
        return dataclasses.replace(config, psi=str(parse_formula(text)), shield=_over(config.shield, None))
    path = wanted.path
    always = path if isinstance(path, Always) else None
    if (always is None and not any_path) or not path.bound() or not wanted.bound:
        raise UserError(
            f"spec must have the form 'P>=0.9 [ G<=30 !hazard ]', with a probability above 0 and 1 step or more, got {text!r}"
        )
    if wanted.comparison != ">=":
        raise UserError(f"spec must ask for a probability of at least so much (P>=…), got {text!r}")
    level, error = float(1 - wanted.bound), config.shield.approximation_error
    shield = dataclasses.replace(
        _over(config.shield, path),
        safety_level=level,
        approximation_error=margin(error, level),
    )
    return dataclasses.replace(config, shield=shield, psi=_counted(path) or config.psi)


def _over(shield: ShieldConfig, path: Path | None) -> ShieldConfig:
    """The shield over this path formula; None: over G≤T Ψ, as far as before."""
    if path is None:
        return dataclasses.replace(shield, path=None)
    steps = path.bound() or shield.horizon
    rolled = min(shield.rolled, steps) if shield.rolled is not None else None
    if isinstance(path, Always):
        return dataclasses.replace(shield, path=None, horizon=steps, rolled=rolled)
    return dataclasses.replace(shield, path=str(path), horizon=steps, rolled=None, critics=None)


def _counted(path: Path) -> str | None:
    """The Ψ whose violations are counted: Φ of G Φ, Φ₁ ∨ Φ₂ of Φ₁ U Φ₂; None: no state violates the formula by itself."""
    match path:
        case Always(operand):
            return str(operand)
        case Until(left, right) if (left | right).constant() is None:
            return str(left | right)
    return None


def to_dict(config: Any) -> dict[str, Any]:
    """Nested plain data, ready for JSON."""
    return dataclasses.asdict(config)


def from_dict(data: Mapping[str, Any]) -> Config:
    """The settings that `to_dict` wrote, in this version or an earlier one."""
    if not isinstance(data, Mapping):
        raise UserError(f"settings must be a mapping, such as to_dict gives, got {short(data)}")
    return changed(Config(), completed(migrated(data)))


def changed(config: Any, changes: Mapping[str, Any], where: str = "") -> Any:
    """A copy with some fields, nested ones too, set to other values; unknown names and wrong types are refused."""
    hints = types_of(type(config))
    values = {}
    for name, value in changes.items():
        if name not in hints:
            near = difflib.get_close_matches(name, hints, n=1, cutoff=0.5) if isinstance(name, str) else []
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise UserError(f"unknown setting {f'{where}{name}'!r}{hint}")
        old = getattr(config, name)
        if dataclasses.is_dataclass(old):
            if not isinstance(value, Mapping):
                raise UserError(f"{where}{name} must be a group of settings, got {short(value)}")
            values[name] = changed(old, value, f"{where}{name}.")
        else:
            values[name] = checked(where + name, value, hints[name])
    return dataclasses.replace(config, **values)
