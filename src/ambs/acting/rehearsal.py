"""A run tried out before it starts: whatever would be refused there, or could not be meant, is refused now."""

from typing import Any

from ambs.acting.act import default_thresholds
from ambs.acting.adapter import interface
from ambs.acting.worlds import make_envs, title
from ambs.config import METHODS, Config
from ambs.envs.options import refuse_constant
from ambs.errors import UserError
from ambs.spec.formula import Constant, Formula


def rehearse(config: Config) -> None:
    """Make one environment of a run, start an episode in it, and throw it away."""
    envs = make_envs(config, 1, learning=True)
    try:
        interface(envs, config)
        check_meant(config, envs.psi)
        default_thresholds(config, len(envs.atoms) if config.model.cost_head == "labels" else 1)
        check_started(config, envs.reset(seed=0)[1])
    finally:
        envs.close()


def check_given(config: Config, policy: Any) -> None:
    """Refuse a policy where none is guarded, and none where one is."""
    if config.guards and policy is None:
        raise UserError("method guard needs the policy that acts (--policy module:factory, policy=…)")
    if policy is not None and not config.guards:
        raise UserError(f"method {config.method} takes no policy: guard does")


def check_started(config: Config, infos: dict[str, Any]) -> None:
    """Refuse environments none of which could be reset; `infos` are those of the reset."""
    if len(infos["faults"]) == len(infos["labels"]):
        raise UserError(f"{title(config.env)} cannot start an episode: {infos['faults'][0].reason}")


def check_meant(config: Config, psi: Formula) -> None:
    """Refuse a Ψ that holds, or fails, whatever happens; `true` will do where nothing learns from it or is shielded by it. Refuse
    a shield that has nothing to do with learning, too."""
    if config.shielded and config.shield.kind == "prescient":
        raise UserError(
            "a prescient shield is for evaluation: it plays every future in the simulator itself (ambs eval)"
        )
    if config.shield.path is not None:
        raise UserError(
            f"policies are trained for G<=n alone, not for {config.shield.path}: ask for that afterwards (--spec)"
        )
    heeded = config.shielded or METHODS[config.method].penalty != "none"
    if heeded or psi != Constant(True):
        refuse_constant(psi)
