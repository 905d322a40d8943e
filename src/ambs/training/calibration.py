"""When a run is calibrated, what that goes by, and what it puts in force (`ambs.training.calibrate` has the mathematics)."""

from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np

from ambs.config import Config
from ambs.data import Experience
from ambs.shield.rules import Decision, Reason, accepted_risks
from ambs.spec.risk import violates
from ambs.streams import at, stream
from ambs.training.calibrate import ENOUGH, calibrate_level, memorised, of_decisions, unaided
from ambs.training.compiled import compiled_calibration, compiled_fidelity
from ambs.training.replay import Use

if TYPE_CHECKING:
    from ambs.training.trainer import Trainer

EPISODES = 8
"""Worlds, if there are as many, from which calibration draws its windows."""
RECENT = 4
"""The newest of so many parts of what is kept tells what the shield's decisions are worth, if it suffices."""
PATIENCE = 4
"""Times that a calibration may fall due without anything to go by."""
AGAIN = 8
"""Part of the time between calibrations after which one that had too little to go by is tried again."""


class Calibration:
    """That of runs with these settings."""

    def __init__(self, config: Config) -> None:
        """`config` as what is compiled is kept by."""
        self.config = config
        self._calibrate, self._score, self._judge = compiled_calibration(config)

    def when_due(self, run: "Trainer") -> None:
        """Calibrate, if it is time to: what is in force, and how good labels and foresight are."""
        every = self.config.calibration.every
        if not every or run.updates < run.calibrated + every:
            return
        rng = run.lot("calibration", run.updates)
        if not (self._set_level(run, rng) and self._set_thresholds(run, rng)):
            run.calibrated = run.updates - every + -(-every // AGAIN)
            self._without_windows(run)
            return
        run.calibrated = run.updates
        held_out, trained = (self._windows(run, rng, use) for use in (Use.JUDGING, Use.LEARNING))
        if held_out is None or trained is None:
            return
        quality, learned = (
            _numbers(self._judge(run.player.model, windows, run.thresholds, run.root, run.updates))
            for windows, _ in (held_out, trained)
        )
        run.label_quality |= quality | memorised(quality, learned)
        if run.foreign is not None:
            # How like the policy that is given its clone is (`clone/…`).
            key = at(stream(run.root, "fidelity"), run.updates)
            run.label_quality |= _numbers(compiled_fidelity(self.config)(run.player, held_out[0], key))

    def _set_level(self, run: "Trainer", rng: np.random.Generator) -> bool:
        """Put in force what the shield's own decisions call for, or windows of held-out worlds; False: of both are too few."""
        if run.level is None:
            return True
        for rows in (run.replay.kept // RECENT, run.replay.kept):
            risk, safe = self._decided(run, rows)
            if safe.sum() >= ENOUGH:
                break
        else:
            found = self._windows(run, rng, Use.THRESHOLDS)
            if found is None:
                return False
            windows, saved = found
            risk, stays_safe = map(np.asarray, self._score(run.player, windows, run.root, run.updates))
            safe = unaided(stays_safe, saved, risk)
        shield, share = self.config.shield, self.config.calibration.false_alarms
        level = calibrate_level(risk, safe, share, accepted_risks(shield), int(run.level))
        run.level = jnp.asarray(level, run.level.dtype)
        run.label_quality["shield/calibrated_on"] = float(safe.sum())
        return bool(safe.sum() >= ENOUGH)

    def _decided(self, run: "Trainer", rows: int) -> tuple[np.ndarray, np.ndarray]:
        """`of_decisions` of the last so many rows."""
        told, spec = run.replay.latest(rows), run.interface.spec
        violating = np.asarray(violates(spec.psi, spec.atoms, told.labels))
        return of_decisions(told, violating, self.config.shield.horizon)

    def _set_thresholds(self, run: "Trainer", rng: np.random.Generator) -> bool:
        """Set the labels' thresholds on windows of held-out worlds, where labels are thresholded; False: there are too few."""
        if self.config.shield.labels != "mode":
            return True
        found = self._windows(run, rng, Use.THRESHOLDS)
        if found is None:
            return False
        run.thresholds, safe = self._calibrate(run.player, found[0], run.root, run.updates)
        return int(safe) >= ENOUGH

    def _windows(self, run: "Trainer", rng: np.random.Generator, use: Use) -> tuple[Experience, np.ndarray] | None:
        """Windows of this use to calibrate by, and in which the backup policy acted after the context; None: there are none."""
        calibration, replay = self.config.calibration, run.replay
        length = calibration.context + self.config.shield.horizon
        if not replay.can_draw(length, use):
            return None
        # What policy and shield do now is what they are judged by, but a few layouts would judge by their luck.
        latest = max(replay.kept // 2, replay.rows_with(EPISODES, use))
        where = replay.draw(rng, (calibration.windows,), length, latest, use)
        acted = replay.who_acted(*where, length)[:, calibration.context :]
        return replay.windows(*where, length), np.asarray(acted.any(axis=1))

    def _without_windows(self, run: "Trainer") -> None:
        """Where episodes are too short, or safe windows too few, to calibrate on, the Δ that is asked for is put in force: a
        shield that nobody has judged is not to be lenient for long."""
        if run.level is not None and run.updates >= PATIENCE * self.config.calibration.every:
            run.level = jnp.zeros_like(run.level)


def said(decision: Decision) -> np.ndarray:
    """1 − p̃ of every decision for which futures were imagined; NaN of the others."""
    asked = (np.asarray(decision.traces_used) > 0) & (np.asarray(decision.reason) != Reason.NON_FINITE)
    return np.where(asked, 1 - np.asarray(decision.p_safe), np.nan)


def _numbers(found: dict[str, Any]) -> dict[str, float]:
    return {name: float(value) for name, value in found.items()}
