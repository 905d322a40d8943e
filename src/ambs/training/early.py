"""Giving up a run by the rule that its settings have: a function of its rows alone, so that a resumed run is judged alike."""

from pathlib import Path
from typing import NamedTuple

from ambs.config.settings import StopConfig
from ambs.storage.run_folder import EPISODES, METRICS, RunFolder, read_rows
from ambs.training.observers import Observer, Row

LAST = 20
"""Episodes over which what is known of episodes is averaged."""
OF_EPISODES = ("return", "length")


class Verdict(NamedTuple):
    """What the rule made of a run."""

    stopped: bool
    says: str
    """The figure, in words."""


class EarlyStop:
    """Judges a run once, when its time has come."""

    def __init__(self, rule: StopConfig, folder: RunFolder, frames: int) -> None:
        """`frames`: how many the run has by now."""
        self._rule, self._folder = rule, folder
        self.verdict = judge(rule, folder.path, frames)
        self._note()

    @property
    def stopped(self) -> bool:
        """Whether the run is given up."""
        return self.verdict is not None and self.verdict.stopped

    def observer(self) -> Observer:
        """Looks at the rows as they come; to stand behind the one that writes them."""
        return Observer(metrics=self._look)

    def _look(self, row: Row) -> None:
        if self.verdict is None and self._rule.metric is not None and row["frames"] >= self._rule.at:
            self.verdict = judge(self._rule, self._folder.path, row["frames"])
            self._note()

    def _note(self) -> None:
        if self.verdict is not None:
            self._folder.notes |= {"stopped" if self.verdict.stopped else "rule": self.verdict.says}


def judge(rule: StopConfig, path: Path, frames: int) -> Verdict | None:
    """What the rule says of the first row of metrics at or after its frame, or None if that is not among the first `frames`."""
    if rule.metric is None:
        return None
    row = next((row for row in read_rows(path / METRICS) if rule.at <= row["frames"] <= frames), None)
    if row is None:
        return None
    if rule.metric in OF_EPISODES:
        rows = [one for one in read_rows(path / EPISODES) if one["frames"] <= row["frames"]]
        values = [one[rule.metric] for one in rows[-LAST:] if one.get(rule.metric) is not None]
        value = sum(values) / len(values) if values else None
    else:
        value = row.get(rule.metric)
    if not isinstance(value, int | float):
        return Verdict(False, f"{rule.metric} was not known at frame {row['frames']}")
    beneath = value < rule.below
    word = "below" if beneath else "not below"
    return Verdict(beneath, f"{rule.metric} was {value:.6g} at frame {row['frames']}, {word} {rule.below:g}")
