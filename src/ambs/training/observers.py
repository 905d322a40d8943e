"""Who watches a run: its folder, Weights & Biases, a display, whoever asks. The training loop tells them; no JAX here."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ambs.config.checks import function
from ambs.errors import UserError
from ambs.storage.run_folder import RunFolder

if TYPE_CHECKING:
    from ambs.training.trainer import Trainer

Row = dict[str, Any]


def _ignore(*_: Any) -> None:
    """Who does not want to know."""


@dataclass(frozen=True)
class Observer:
    """Somebody who is told what happens in a run."""

    episode: Callable[[Row], None] = _ignore
    """An episode has ended."""
    metrics: Callable[[Row], None] = _ignore
    """There is a new row of metrics."""
    turn: Callable[[Trainer], None] = _ignore
    """A turn of the wheel is complete, and the trainer's state is whole."""
    close: Callable[[], None] = _ignore
    """The run is over, whichever way it ended."""


def run_log(folder: RunFolder, trainer: Trainer) -> Observer:
    """Rows of metrics and episodes, and the status, in the run folder."""

    def metrics(row: Row) -> None:
        folder.log_metrics(row)
        folder.flush()
        with folder.forgiving():
            write_status(folder, trainer, "running")

    return Observer(episode=folder.log_episode, metrics=metrics)


def weights_and_biases(folder: RunFolder) -> Observer:
    """A run of Weights & Biases under this folder's name, so that a resumed one goes on with it."""
    wandb, name = import_wandb(), folder.path.name
    try:
        run = wandb.init(project="ambs", id=name, name=name, dir=str(folder.path), config=folder.config, resume="allow")
    except Exception as error:
        raise UserError(f"Weights & Biases could not be started ({type(error).__name__}: {error})") from error
    return Observer(metrics=lambda row: run.log(row, step=row["frames"]), close=run.finish)


def shown_to(on_metrics: Callable[[Row], None]) -> Observer:
    """A function that is called with every row of metrics, and may write to a terminal."""
    show = function("on_metrics", on_metrics, "that takes a row")

    def metrics(row: Row) -> None:
        with suppress(OSError):  # A terminal that has gone away.
            show(row)

    return Observer(metrics=metrics)


def write_status(folder: RunFolder, trainer: Trainer, state: Any, message: str = "") -> None:
    """Say in the run folder how far the run is."""
    totals = trainer.accounts.totals()
    folder.write_status(
        state,
        frames=totals["frames"],
        agent_steps=totals["agent_steps"],
        updates=trainer.updates,
        message=message,
        violations=totals["violations"],
        episodes=totals["episodes"],
        faults=totals["faults"],
        wanted_frames=trainer.config.training.frames,
        psi=str(trainer.interface.spec.psi),
        atoms=list(trainer.interface.spec.atoms.names),
    )


def import_wandb() -> Any:
    """The package; a UserError if it is not installed."""
    try:
        return importlib.import_module("wandb")
    except ImportError:
        raise UserError("training.wandb needs Weights & Biases: install the extra `ambs[wandb]`") from None
