"""Checkpoints of a run: every so many frames, as an observer, and whenever somebody asks for one."""

from pathlib import Path

from ambs.errors import DISK_FAILED, RunError
from ambs.storage import checkpoint
from ambs.storage.binding import SETTINGS, bind
from ambs.storage.files import reason
from ambs.storage.run_folder import RunFolder
from ambs.training.observers import Observer, write_status
from ambs.training.resume import capture
from ambs.training.trainer import Trainer


class Checkpoints:
    """Writes them into the run folder, each bound to the settings that it was made with."""

    def __init__(self, folder: RunFolder, trainer: Trainer) -> None:
        self.folder, self.trainer = folder, trainer
        self.saved: int | None = None
        """Frames of the last checkpoint that is known to be whole."""
        self.marked = trainer.accounts.frames
        """Frames from which the next checkpoint is counted."""

    def observer(self) -> Observer:
        """Saves when it is time."""
        return Observer(turn=self._turn)

    def _turn(self, trainer: Trainer) -> None:
        every = trainer.config.training.checkpoint_every
        # The last one is left to whoever knows how the run ended.
        if every and trainer.accounts.frames // every > self.marked // every and not trainer.finished:
            self.save()

    def save(self, state: str = "running") -> Path:
        """Write a checkpoint of this moment; `state` is what is to be said of the run. A RunError if it cannot be written."""
        trainer = self.trainer
        groups, meta, pieces = capture(trainer)
        meta[SETTINGS] = bind(self.folder)
        frames = trainer.accounts.frames
        try:
            meta["positions"] = self.folder.positions()
        except OSError as error:
            raise RunError(f"the logs could not be written ({reason(error)})", DISK_FAILED) from error
        keep = trainer.config.training.keep
        try:
            path = checkpoint.save(
                self.folder.checkpoints, frames, groups, meta, pieces, keep, still_ours=self.folder.still_ours
            )
        except checkpoint.LeftoversError as error:
            self.saved = frames
            raise RunError(f"old checkpoints could not be deleted ({reason(error)})", DISK_FAILED) from error
        except OSError as error:
            raise RunError(f"a checkpoint could not be written ({reason(error)})", DISK_FAILED) from error
        self.saved = self.marked = frames
        with self.folder.forgiving():
            write_status(self.folder, trainer, state)
        return path

    def way_on(self) -> str:
        """What is left of a run that failed."""
        if self.saved is None:
            return f"there is no checkpoint in {self.folder.path} to go on from"
        return f"the checkpoint of frame {self.saved} is whole: ambs resume {self.folder.words}"
