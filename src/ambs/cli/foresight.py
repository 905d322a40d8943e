"""`ambs foresight`: does the shield's imagination foresee danger?"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro


@dataclass(frozen=True)
class Foresight:
    """Measure whether a trained shield's imagination foresees danger, on layouts that training never used.

    The task policy plays without the shield; in every state imagination says how likely Ψ fails within the horizon, and what
    then happens tells how right it was. The figures are written to `foresight.json` in the run folder.
    """

    run_folder: tyro.conf.Positional[Path]
    """The run folder."""
    horizon: int | None = None
    """Agent steps to look ahead; None: as the shield does."""
    episodes: int | None = None
    """Episodes to play; None: as many as make 20 000 agent steps."""
    traces: int = 64
    """Imagined futures per state."""
    seed: int = 0
    """Worlds and noise; other than those of the training."""
    frames: int | None = None
    """Use the checkpoint at this frame; None: the newest."""
    json: bool = False
    """Print the figures as JSON and nothing else."""

    def run(self) -> int:
        """Play, measure, report."""
        from ambs.cli.train import prepare_device
        from ambs.errors import UserError
        from ambs.presets import from_dict
        from ambs.training.files import to_json, write_atomic
        from ambs.training.run_folder import RunFolder

        if (self.episodes is not None and self.episodes < 1) or self.seed < 0 or self.traces < 1:
            raise UserError("--episodes and --traces must be at least 1 and --seed at least 0")
        prepare_device("auto", from_dict(RunFolder.open(self.run_folder).config).model.size)
        result = {"run": str(self.run_folder), **self._measure()}
        path = self.run_folder / "foresight.json"
        write_atomic(path, to_json(result))
        if self.json:
            print(json.dumps(result))
        else:
            _print(result)
            print(f"Wrote {path}")
        return 0

    def _measure(self) -> dict[str, Any]:
        from contextlib import nullcontext

        from rich.console import Console
        from rich.progress import Progress

        from ambs.foresight.measure import measure, with_horizon
        from ambs.training.agent import load

        agent = with_horizon(load(self.run_folder, self.frames), self.horizon)
        console = Console(stderr=True)
        bar = Progress(console=console, transient=True) if console.is_terminal else None
        with bar or nullcontext():
            show = None
            if bar is not None:
                task = bar.add_task("playing", total=None)
                show = lambda done: bar.update(task, completed=done)  # noqa: E731
            return measure(agent, episodes=self.episodes, traces=self.traces, seed=self.seed, on_step=show)


def _print(result: dict[str, Any]) -> None:
    print(json.dumps(result, indent=1))
