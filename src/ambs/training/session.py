"""A run from start to end: folder, checkpoints, signals. `train` starts one, `resume` goes on with one."""

import importlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax

from ambs.config import Config
from ambs.errors import UserError
from ambs.presets import from_dict, to_dict
from ambs.training import checkpoint
from ambs.training.loop import Diverged, Listener, Row, Trainer
from ambs.training.run_folder import RunFolder
from ambs.training.snapshot import capture, reinstate

FINISHED, INTERRUPTED = "finished", "interrupted"


class Session:
    """A trainer that keeps its run folder up to date."""

    def __init__(self, trainer: Trainer, folder: RunFolder, *, on_metrics: Callable[[Row], None] | None = None) -> None:
        self.trainer, self.folder = trainer, folder
        self.on_metrics = on_metrics or (lambda _row: None)
        self.saved = trainer.accounts.frames
        self.stop = threading.Event()
        trainer.listener = Listener(self._metrics, folder.log_episode)
        self.wandb = _wandb(folder) if trainer.config.training.wandb else None

    def run(self) -> str:
        """Train to the end or until `stop` is set; returns the run's state: finished or interrupted."""
        trainer, every = self.trainer, self.trainer.config.training.checkpoint_every
        try:
            while not trainer.finished and not self.stop.is_set():
                trainer.turn()
                if every and trainer.accounts.frames // every > self.saved // every and not trainer.finished:
                    self.save()
            state = FINISHED if trainer.finished else INTERRUPTED
            self.save()
            self._status(state)
        except BaseException as error:
            self.folder.flush()
            self._status("failed", f"{type(error).__name__}: {error}")
            raise
        finally:
            self.folder.close()
            trainer.close()
            if self.wandb is not None:
                self.wandb.finish()
        return state

    def save(self) -> Path:
        """Write a checkpoint of this moment."""
        groups, meta, pieces = capture(self.trainer)
        frames = self.trainer.accounts.frames
        meta["positions"] = self.folder.positions()
        path = checkpoint.save(
            self.folder.checkpoints, frames, groups, meta, pieces, keep=self.trainer.config.training.keep
        )
        self.saved = frames
        self._status("running")
        return path

    def _metrics(self, row: Row) -> None:
        self.folder.log_metrics(row)
        self.folder.flush()
        self._status("running")
        if self.wandb is not None:
            self.wandb.log(row, step=row["frames"])
        self.on_metrics(row)

    def _status(self, state: Any, message: str = "") -> None:
        totals = self.trainer.accounts.totals()
        self.folder.write_status(
            state,
            frames=totals["frames"],
            agent_steps=totals["agent_steps"],
            updates=self.trainer.updates,
            message=message,
            violations=totals["violations"],
            episodes=totals["episodes"],
            wanted_frames=self.trainer.config.training.frames,
        )


def _wandb(folder: RunFolder) -> Any:
    """A run of Weights & Biases under this folder's name, so that a resumed one goes on with it."""
    try:
        wandb = importlib.import_module("wandb")
    except ImportError:
        raise UserError("training.wandb needs Weights & Biases: install the extra `ambs[wandb]`") from None
    name = folder.path.name
    return wandb.init(project="ambs", id=name, name=name, dir=str(folder.path), config=folder.config, resume="allow")


def start(
    config: Config,
    out: Path = Path("runs"),
    *,
    command: list[str] | None = None,
    on_metrics: Callable[[Row], None] | None = None,
) -> Session:
    """A new run in a folder of its own under `out`."""
    trainer = Trainer(config)
    device = jax.devices()[0]
    folder = RunFolder.create(
        out,
        env=config.env.removeprefix("ambs/"),
        method=config.method,
        seed=config.seed,
        config=to_dict(config),
        command=command if command is not None else sys.argv,
        device=f"{device.platform} {device.device_kind}",
    )
    return Session(trainer, folder, on_metrics=on_metrics)


def reopen(run: Path, *, on_metrics: Callable[[Row], None] | None = None) -> tuple[Session, tuple[str, ...]]:
    """A run that goes on from its newest intact checkpoint, and a sentence about each damaged one passed over."""
    folder = RunFolder.open(run)
    config = from_dict(folder.config)
    found = checkpoint.load(folder.checkpoints)
    if found.meta["totals"]["frames"] >= config.training.frames:
        raise UserError(f"{run} is finished: all {config.training.frames} frames are played")
    trainer = Trainer(config)
    reinstate(trainer, found)
    checkpoint.rewind(folder.checkpoints, found.step)
    folder.cut(found.meta["positions"])
    return Session(trainer, folder, on_metrics=on_metrics), found.skipped


def train(config: Config, out: Path | str = "runs", *, on_metrics: Callable[[Row], None] | None = None) -> Path:
    """Train and return the run folder; SIGINT and SIGTERM write a checkpoint first."""
    session = start(config, Path(out), on_metrics=on_metrics)
    with stopping(session):
        session.run()
    return session.folder.path


@contextmanager
def stopping(session: Session) -> Iterator[None]:
    """Let the first SIGINT or SIGTERM end the session in order; a second one ends it at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def request(_number: int, _frame: Any) -> None:
        if session.stop.is_set():
            raise KeyboardInterrupt
        session.stop.set()

    for number in before:
        signal.signal(number, request)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


__all__ = ["Diverged", "Session", "reopen", "start", "stopping", "train"]
