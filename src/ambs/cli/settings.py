"""The settings of `ambs train`; apart from the verb, because with them comes all of JAX."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_type_hints

import tyro

from ambs.cli.train import prepare_device, watch, watch_fleet
from ambs.cli.words import refuse_file
from ambs.config import Config
from ambs.config.seeds import check_fleet, parse_seeds


@dataclass(frozen=True)
class Train:
    """Train an agent: world model, task policy, backup policy and shield, from scratch.

    Settings come from the preset, then --semantics, --method, --spec and --shield, then --config, then single settings
    such as --gamma or --agent.lam. Writes a run folder; Ctrl-C writes a checkpoint and says how to go on.
    """

    preset: Literal["quickstart", "guard", "default", "paper-scale"] = "default"
    """quickstart: point_world, minutes on two cores. guard: around a policy of yours in a world of a few numbers (what --policy
    takes, if nothing else is said), as quick. default: the paper's tasks on one GPU. paper-scale: its sizes."""
    policy: str | None = None
    """A policy of yours that acts, module:factory or file.py:factory; what guards it is learned (method guard). It has predict as
    in Stable-Baselines3, or is a function of the observation."""
    spec: str | None = None
    """Safety property such as "P>=0.9 [ G<=30 !hazard ]": Δ, horizon and Ψ at once; or a formula such as "!hazard": Ψ alone. ε
    stays, unless Δ does not exceed it. None: the preset's Δ and horizon, the environment's own Ψ."""
    shield: Literal["on", "off"] | None = None
    """Switch the shield, whatever the method; None: as the method has it."""
    seeds: str | None = None
    """Several seeds at once in one process, such as 0-4 or 0,2,5, with a run folder each; on a GPU one mapped call decides, and
    one learns, for all of them. In place of --seed."""
    config: Path | None = None
    """JSON file of settings, nested like config.json of a run folder; or such a config.json itself."""
    device: Literal["auto", "cpu", "gpu"] = "auto"
    """Where to compute."""
    out: Path = Path("runs")
    """Folder in which the run folder is made; with --seeds, {seed} in it stands for the seed."""
    dry_run: bool = False
    """Check the settings, with an environment that starts an episode and the policy, made and thrown away, print them as JSON,
    train nothing."""
    settings: Annotated[Config, tyro.conf.arg(name="")] = field(default_factory=Config)

    def run(self) -> int:
        """Train, with a display."""
        refuse_file("--out", self.out)
        self.settings.refuse_futile()
        if self.seeds is not None:
            seeds = parse_seeds(self.seeds)
            check_fleet(self.settings, seeds)
        if self.dry_run:
            from ambs.acting.foreign import load_policy
            from ambs.acting.rehearsal import check_given, rehearse
            from ambs.training.observers import import_wandb

            if self.settings.training.wandb:
                import_wandb()
            check_given(self.settings, None if self.policy is None else load_policy(self.policy))
            rehearse(self.settings)
            print(json.dumps(asdict(self.settings), indent=1))
            return 0

        def begin(**hooks: Any) -> Any:
            prepare_device(self.device, self.settings.model.size)
            from ambs.acting.foreign import load_policy
            from ambs.training.session import start

            policy = None if self.policy is None else load_policy(self.policy)
            return start(self.settings, self.out, command=["ambs", *sys.argv[1:]], policy=policy, **hooks)

        def begin_all(**hooks: Any) -> Any:
            prepare_device(self.device, self.settings.model.size)
            from ambs.training.fleet import start_fleet

            return start_fleet(self.settings, seeds, self.out, command=["ambs", *sys.argv[1:]], **hooks)

        return watch(begin) if self.seeds is None else watch_fleet(begin_all)


def flag_aliases(settings: type[Config]) -> dict[str, str]:
    """Short names of flags, and what each stands for: `--frames` for `--training.frames`."""
    found: dict[str, str] = {}
    for group in fields(settings):
        if is_dataclass(group.default_factory):
            for name, hint in get_type_hints(group.default_factory, include_extras=True).items():
                for alias in (word for told in get_args(hint)[1:] for word in getattr(told, "aliases", None) or ()):
                    found[alias] = f"--{group.name}.{name.replace('_', '-')}"
    return found
