"""The settings of `ambs train`; apart from the verb, because with them comes all of JAX."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from ambs.cli.train import prepare_device, watch
from ambs.config import Config


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
    config: Path | None = None
    """JSON file of settings, nested like config.json of a run folder; or such a config.json itself."""
    device: Literal["auto", "cpu", "gpu"] = "auto"
    """Where to compute."""
    out: Path = Path("runs")
    """Folder in which the run folder is made."""
    dry_run: bool = False
    """Check the settings, with one environment and the policy made and thrown away, print them as JSON, and train nothing."""
    settings: Annotated[Config, tyro.conf.arg(name="")] = field(default_factory=Config)

    def run(self) -> int:
        """Train, with a display."""
        if self.dry_run:
            from ambs.acting.foreign import load_policy
            from ambs.acting.worlds import make_envs

            if self.policy is not None:
                load_policy(self.policy)
            make_envs(self.settings, 1, learning=True).close()
            print(json.dumps(asdict(self.settings), indent=1))
            return 0

        def begin(**hooks: Any) -> Any:
            prepare_device(self.device, self.settings.model.size)
            from ambs.acting.foreign import load_policy
            from ambs.training.session import start

            policy = None if self.policy is None else load_policy(self.policy)
            return start(self.settings, self.out, command=["ambs", *sys.argv[1:]], policy=policy, **hooks)

        return watch(begin)
