"""A run from start to end: folder, checkpoints, signals. `train` and `start` begin one, `reopen` goes on with one."""

import sys
import threading
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import jax

from ambs.acting.adapter import Interface
from ambs.acting.fitting import check_meta, fitting
from ambs.acting.worlds import Make, check_world, function_of
from ambs.config import Config
from ambs.config.checks import folder
from ambs.config.resolve import changed, from_dict, to_dict
from ambs.errors import DISK_FAILED, RunError, UserError
from ambs.forks import refuse_after_fork
from ambs.storage import checkpoint
from ambs.storage.binding import check_bound
from ambs.storage.files import finite, reason, to_json, write_atomic
from ambs.storage.lease import Lost
from ambs.storage.run_folder import RunFolder
from ambs.training.asking import Life, lived
from ambs.training.checkpoints import Checkpoints
from ambs.training.early import EarlyStop, judge
from ambs.training.observers import Observer, Row, import_wandb, run_log, shown_to, weights_and_biases, write_status
from ambs.training.resume import reinstate
from ambs.training.signals import stopping
from ambs.training.trainer import Diverged, Trainer

FINISHED, INTERRUPTED = "finished", "interrupted"


class Finished(UserError):  # noqa: N818 (it is what the run is)
    """There is nothing to go on with."""


class Session:
    """A trainer whose run folder is kept up to date, and how its run ends."""

    def __init__(
        self,
        trainer: Trainer,
        folder: RunFolder,
        *,
        observers: Sequence[Observer] = (),
        stop: threading.Event | None = None,
    ) -> None:
        self.trainer, self.folder = trainer, folder
        self.stop = stop or threading.Event()
        self.checkpoints = Checkpoints(folder, trainer)
        self.early = EarlyStop(trainer.config.stop, folder, trainer.accounts.frames)
        wandb = [weights_and_biases(folder)] if trainer.config.training.wandb else []
        watching = [run_log(folder, trainer), self.early.observer(), *wandb, *observers]
        trainer.observers = [*watching, self.checkpoints.observer()]

    def watched_by(self, observer: Observer) -> None:
        """Tell somebody else of what happens, too."""
        self.trainer.observers.insert(-1, observer)  # Before the checkpoints, which may fail.

    def run(self) -> str:
        """Train to the end, or until `stop` is set or the run's own rule gives it up; returns its state: finished or interrupted.

        A disk that does not take a checkpoint, environments with too many faults and updates that are no longer finite end
        it with a `RunError`; the last checkpoint is then as it was.
        """
        return lived(self.life(), self.trainer.answer)

    def life(self) -> Life[str]:
        """`run`, whoever answers what the trainer asks."""
        try:
            until = lambda: self.stop.is_set() or self.early.stopped  # noqa: E731
            ended = yield from self.trainer.life(until)
            state = FINISHED if ended or self.early.stopped else INTERRUPTED
            self.checkpoints.save(state)
        except Lost:
            raise
        except BaseException as error:
            self.folder.flush()
            with suppress(OSError):
                write_status(self.folder, self.trainer, "failed", f"{type(error).__name__}: {error}")
            if isinstance(error, RunError):
                raise RunError(f"{error}; {self.checkpoints.way_on()}", error.code) from error
            raise
        finally:
            self.folder.close()
            self.trainer.close()
            for observer in self.trainer.observers:
                observer.close()
        return state


def start(
    config: Config,
    out: Path = Path("runs"),
    *,
    command: list[str] | None = None,
    observers: Sequence[Observer] = (),
    stop: threading.Event | None = None,
    policy: Any = None,
    make: Make | None = None,
) -> Session:
    """A new run in a folder of its own under `out`; if it cannot be started, no folder is left.

    `policy` and `make`: as for `Trainer`.
    """
    refuse_after_fork()
    if config.training.wandb:
        import_wandb()
    return begin(Trainer(config, policy=policy, make=make), out, command=command, observers=observers, stop=stop)


def begin(
    trainer: Trainer,
    out: Path,
    *,
    command: list[str] | None = None,
    observers: Sequence[Observer] = (),
    stop: threading.Event | None = None,
) -> Session:
    """A folder of its own for a trainer; if it cannot be made, the trainer is closed and nothing is left."""
    config, device = trainer.config, jax.devices()[0]
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
        return Session(trainer, folder, observers=observers, stop=stop)
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
    observers: Sequence[Observer] = (),
    stop: threading.Event | None = None,
    policy: Any = None,
    make: Make | None = None,
    kind: Callable[..., Trainer] | None = None,
) -> tuple[Session, tuple[str, ...]]:
    """A run that goes on from its newest intact checkpoint, and a sentence about everything damaged that it does without.

    With `frames` it goes to so many, now and whenever it is resumed again. With `trust` a checkpoint that does not say
    which settings it was made with will do, too. An environment that is none of ours must be named again, as `env`, unless
    the folder is trusted; one without a name, and a policy that is guarded, are given again. Nothing in the folder is changed
    before the checkpoint has proved to fit. `kind` makes another trainer than a run by itself has, of settings and `known`.
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
        if not config.training.store_replay:
            raise UserError(
                f"{run} cannot be resumed: its checkpoints hold no replay buffer (training.store_replay); it can be evaluated"
            )
        if config.training.wandb:
            import_wandb()
        with fitting(found):
            known = Interface.from_dict(found.meta["interface"])
        given = {"policy": policy, "make": make or function_of(config, env)} if kind is None else {}
        trainer = (kind or Trainer)(config, known=known, **given)
        reinstate(trainer, found)
        folder.check(found.meta["positions"])
        session = Session(trainer, folder, observers=observers, stop=stop)
        session.checkpoints.saved = found.step
        try:
            checkpoint.rewind(folder.checkpoints, found.step)
            folder.cut(found.meta["positions"])
            if config != from_dict(folder.config):
                folder.extend(config.training.frames)
                session.checkpoints.save()  # Of the same moment, with the digest of the settings as they are now.
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
    played = found.meta["totals"]["frames"]
    if played >= config.training.frames:
        _correct_status(run)
        raise Finished(f"{run} is finished: {played} frames are played; --frames with more lets it go on for longer")
    verdict = judge(config.stop, run, played)
    if verdict is not None and verdict.stopped:
        _correct_status(run, stopped=verdict.says)
        raise Finished(f"{run} is finished: it was given up by its rule, since {verdict.says}")


def _correct_status(run: Path, **notes: str) -> None:
    """Say `finished` of a run that was killed, or failed, after its last checkpoint, before it could."""
    folder = RunFolder.open(run)
    with suppress(UserError, OSError):
        status = folder.read_status()
        if status["state"] != FINISHED:
            write_atomic(run / "status.json", to_json(finite(status | {"state": FINISHED} | notes)))


def train(config: Config, out: Path | str = "runs", *, on_metrics: Callable[[Row], None] | None = None) -> Path:
    """Train and return the run folder. SIGINT and SIGTERM save first, and end in a KeyboardInterrupt."""
    if not isinstance(config, Config):
        raise UserError(f"train takes settings, such as ambs.resolve('quickstart') gives, not {config!r}")
    place, observers = folder("out", out), [] if on_metrics is None else [shown_to(on_metrics)]
    config.refuse_futile()
    with stopping() as stop:
        return run_to_the_end(start(config, place, observers=observers, stop=stop))


def run_to_the_end(session: Session) -> Path:
    """Train and return the run folder. A run that was told to stop is saved, and whoever waits for it is interrupted: nobody
    shall go on with what is half learned as if it were whole."""
    trainer, path = session.trainer, session.folder.path
    if trainer.caveat:
        warnings.warn(trainer.caveat, stacklevel=3)
    if session.run() == INTERRUPTED:
        frames, wanted = trainer.accounts.frames, trainer.config.training.frames
        raise KeyboardInterrupt(
            f"stopped after {frames} of {wanted} frames, which are saved: ambs resume {path} goes on"
        )
    return path


__all__ = ["Diverged", "Session", "reopen", "run_to_the_end", "start", "stopping", "train"]
