"""A run from start to end: folder, checkpoints, signals. `train` starts one, `resume` goes on with one."""

import importlib
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import jax

from ambs.acting.adapter import Interface
from ambs.acting.fitting import check_meta, fitting
from ambs.acting.worlds import check_world
from ambs.config import Config
from ambs.config.resolve import changed, from_dict, to_dict
from ambs.errors import DISK_FAILED, RunError, UserError
from ambs.forks import refuse_after_fork
from ambs.storage import checkpoint
from ambs.storage.binding import SETTINGS, bind, check_bound
from ambs.storage.files import finite, reason, to_json, write_atomic
from ambs.storage.run_folder import RunFolder
from ambs.training.resume import capture, reinstate
from ambs.training.signals import stopping
from ambs.training.trainer import Diverged, Listener, Row, Trainer

FINISHED, INTERRUPTED = "finished", "interrupted"


class Session:
    """A trainer that keeps its run folder up to date."""

    def __init__(
        self,
        trainer: Trainer,
        folder: RunFolder,
        *,
        on_metrics: Callable[[Row], None] | None = None,
        stop: threading.Event | None = None,
    ) -> None:
        self.trainer, self.folder = trainer, folder
        self.on_metrics = on_metrics or (lambda _row: None)
        self.saved: int | None = None
        """Frames of the last checkpoint that is known to be whole."""
        self.marked = trainer.accounts.frames
        """Frames from which the next checkpoint is counted."""
        self.stop = stop or threading.Event()
        trainer.listener = Listener(self._metrics, folder.log_episode)
        self.wandb = _wandb(folder) if trainer.config.training.wandb else None

    def run(self) -> str:
        """Train to the end or until `stop` is set; returns the run's state: finished or interrupted.

        A disk that does not take a checkpoint, environments with too many faults and updates that are no longer finite end
        it with a `RunError`; the last checkpoint is then as it was.
        """
        trainer, every = self.trainer, self.trainer.config.training.checkpoint_every
        try:
            while not trainer.finished and not self.stop.is_set():
                trainer.turn()
                if every and trainer.accounts.frames // every > self.marked // every and not trainer.finished:
                    self.save()
            state = FINISHED if trainer.finished else INTERRUPTED
            self.save(state)
        except BaseException as error:
            self.folder.flush()
            with suppress(OSError):
                self._status("failed", f"{type(error).__name__}: {error}")
            if isinstance(error, RunError):
                raise RunError(f"{error}; {self._way_on()}", error.code) from error
            raise
        finally:
            self.folder.close()
            trainer.close()
            if self.wandb is not None:
                self.wandb.finish()
        return state

    def _way_on(self) -> str:
        """What is left of a run that failed."""
        if self.saved is None:
            return f"there is no checkpoint in {self.folder.path} to go on from"
        return f"the checkpoint of frame {self.saved} is whole: ambs resume {self.folder.words}"

    def save(self, state: str = "running") -> Path:
        """Write a checkpoint of this moment; `state` is what is to be said of the run."""
        groups, meta, pieces = capture(self.trainer)
        meta[SETTINGS] = bind(self.folder)
        frames = self.trainer.accounts.frames
        try:
            meta["positions"] = self.folder.positions()
        except OSError as error:
            raise RunError(f"the logs could not be written ({reason(error)})", DISK_FAILED) from error
        keep = self.trainer.config.training.keep
        try:
            path = checkpoint.save(self.folder.checkpoints, frames, groups, meta, pieces, keep=keep)
        except checkpoint.LeftoversError as error:
            self.saved = frames
            raise RunError(f"old checkpoints could not be deleted ({reason(error)})", DISK_FAILED) from error
        except OSError as error:
            raise RunError(f"a checkpoint could not be written ({reason(error)})", DISK_FAILED) from error
        self.saved = self.marked = frames
        with self.folder.forgiving():
            self._status(state)
        return path

    def _metrics(self, row: Row) -> None:
        self.folder.log_metrics(row)
        self.folder.flush()
        with self.folder.forgiving():
            self._status("running")
        if self.wandb is not None:
            self.wandb.log(row, step=row["frames"])
        with suppress(OSError):  # A terminal that has gone away.
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
            faults=totals["faults"],
            wanted_frames=self.trainer.config.training.frames,
        )


def _import_wandb() -> Any:
    try:
        return importlib.import_module("wandb")
    except ImportError:
        raise UserError("training.wandb needs Weights & Biases: install the extra `ambs[wandb]`") from None


def _wandb(folder: RunFolder) -> Any:
    """A run of Weights & Biases under this folder's name, so that a resumed one goes on with it."""
    wandb, name = _import_wandb(), folder.path.name
    try:
        return wandb.init(
            project="ambs", id=name, name=name, dir=str(folder.path), config=folder.config, resume="allow"
        )
    except Exception as error:
        raise UserError(f"Weights & Biases could not be started ({type(error).__name__}: {error})") from error


def start(
    config: Config,
    out: Path = Path("runs"),
    *,
    command: list[str] | None = None,
    on_metrics: Callable[[Row], None] | None = None,
    stop: threading.Event | None = None,
) -> Session:
    """A new run in a folder of its own under `out`; if it cannot be started, no folder is left."""
    refuse_after_fork()
    if config.training.wandb:
        _import_wandb()
    trainer = Trainer(config)
    device = jax.devices()[0]
    folder: RunFolder | None = None
    try:
        folder = RunFolder.create(
            out,
            env=config.env.removeprefix("ambs/"),
            method=config.method,
            seed=config.seed,
            config=to_dict(config),
            command=command if command is not None else sys.argv,
            device=f"{device.platform} {device.device_kind}",
        )
        return Session(trainer, folder, on_metrics=on_metrics, stop=stop)
    except BaseException:
        trainer.close()
        if folder is not None:
            folder.remove()
        raise


def reopen(
    run: Path,
    *,
    frames: int | None = None,
    env: str | None = None,
    trust: bool = False,
    on_metrics: Callable[[Row], None] | None = None,
    stop: threading.Event | None = None,
) -> tuple[Session, tuple[str, ...]]:
    """A run that goes on from its newest intact checkpoint, and a sentence about everything damaged that it does without.

    With `frames` it goes to so many, now and whenever it is resumed again. With `trust` a checkpoint that does not say
    which settings it was made with will do, too. An environment that is none of ours must be named again, as `env`, unless
    the folder is trusted. Nothing in the folder is changed before the checkpoint has proved to fit.
    """
    refuse_after_fork()
    folder = RunFolder.open(run)
    config = from_dict(folder.config)
    check_world(config, env, trust=trust)
    folder.claim()
    with suppress(UserError):  # Rows that are missing do not come back.
        folder.log_error = folder.read_status().get("log_error")
    trainer: Trainer | None = None
    try:
        found = checkpoint.load(folder.checkpoints)
        unsure = check_bound(found, folder, config, trust=trust)
        config = config if frames is None else changed(config, {"training": {"frames": frames}})
        _refuse_finished(found, run, config)
        if config.training.wandb:
            _import_wandb()
        with fitting(found):
            known = Interface.from_dict(found.meta["interface"])
        trainer = Trainer(config, known=known)
        reinstate(trainer, found)
        folder.check(found.meta["positions"])
        session = Session(trainer, folder, on_metrics=on_metrics, stop=stop)
        session.saved = found.step
        try:
            checkpoint.rewind(folder.checkpoints, found.step)
            folder.cut(found.meta["positions"])
            if config != from_dict(folder.config):
                folder.extend(config.training.frames)
                session.save()  # Of the same moment, with the digest of the settings as they are now.
        except OSError as error:
            raise RunError(
                f"{run} could not be brought back to its checkpoint of frame {found.step} ({reason(error)}), which is whole: "
                "try again",
                DISK_FAILED,
            ) from error
        return session, (*unsure, *_without(found, trainer))
    except BaseException:
        folder.unlock()
        if trainer is not None:
            trainer.close()
        raise


def _without(found: checkpoint.Checkpoint, trainer: Trainer) -> tuple[str, ...]:
    """Sentences about what is damaged and left behind."""
    passed = [f"{sentence}; going on from the one before" for sentence in found.skipped]
    if found.lost:
        held = sum(
            stop - max(start, trainer.replay.count - trainer.replay.kept) for start, stop in trainer.replay.holes
        )
        passed.append(
            f"of the replay buffer in checkpoint {found.path.name} {len(found.lost)} of {len(found.lost) + len(found.chunks)} "
            f"pieces are damaged ({next(iter(found.lost.values()))}); going on without {held * trainer.replay.envs} steps"
        )
    return tuple(passed)


def _refuse_finished(found: checkpoint.Checkpoint, run: Path, config: Config) -> None:
    check_meta(found)
    if found.meta["totals"]["frames"] >= config.training.frames:
        _correct_status(run)
        raise UserError(
            f"{run} is finished: all {config.training.frames} frames are played; --frames lets it go on for longer"
        )


def _correct_status(run: Path) -> None:
    """Say `finished` of a run that was killed after its last checkpoint, before it could."""
    folder = RunFolder.open(run)
    with suppress(UserError, OSError):
        status = folder.read_status()
        if status["state"] == "running":
            write_atomic(run / "status.json", to_json(finite(status | {"state": FINISHED})))


def train(config: Config, out: Path | str = "runs", *, on_metrics: Callable[[Row], None] | None = None) -> Path:
    """Train and return the run folder; SIGINT and SIGTERM write a checkpoint first."""
    with stopping() as stop:
        session = start(config, Path(out), on_metrics=on_metrics, stop=stop)
        session.run()
    return session.folder.path


__all__ = ["Diverged", "Session", "reopen", "start", "stopping", "train"]
