"""When a run is calibrated, what that goes by, and what it puts in force (`ambs.training.calibrate` has the mathematics)."""

from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np

from ambs.acting.act import Player
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

EPISODES, MOST_EPISODES = 8, 64
"""Worlds, if there are as many, that a calibration goes by at least; and at most, where it goes by decisions."""
RECENT = 4
"""The newest of so many parts of what is kept tells what the shield's decisions are worth, within these numbers of worlds."""
PATIENCE = 4
"""Times that a calibration may fall due, from the start of a run on, without anything to go by."""
AGAIN = 8
"""Part of the time between calibrations after which one that found nothing to go by is tried again."""
BASIS, BY_DECISIONS = "shield/calibrated_on", "shield/by_decisions"
"""Metrics: how many cases that turned out safe the level was set on, 0 if too few; whether they were the shield's decisions."""


class Calibration:
    """That of runs with these settings."""

    def __init__(self, config: Config) -> None:
        """`config` as what is compiled is kept by."""
        self.config = config
        self._calibrate, self._score, self._judge = compiled_calibration(config)

    def when_due(self, run: "Trainer") -> None:
        """Calibrate, if it is time to: what is in force, and how good labels and foresight are."""
        every = self.config.calibration.every
        late = run.updates - run.calibrated - every
        part = -(-every // AGAIN)
        if not every or late < 0 or late // part == (late - run.per_call) // part:
            return
        rng, player = run.lot("calibration", run.updates), run.player
        enough = self._set_level(run, player, rng) if run.level is not None else self._set_thresholds(run, player, rng)
        if not enough and run.level is not None and run.updates >= PATIENCE * every:
            # A shield that nobody has judged is not to be lenient for long.
            run.level = jnp.zeros_like(run.level)
        if enough is None:
            return
        run.calibrated = run.updates
        held_out, trained = (self._windows(run, rng, use) for use in (Use.JUDGING, Use.LEARNING))
        if held_out is None or trained is None:
            return
        quality, learned = (
            _numbers(self._judge(player.model, windows, run.thresholds, run.root, run.updates))
            for windows, _ in (held_out, trained)
        )
        run.label_quality |= quality | memorised(quality, learned)
        if run.foreign is not None:
            # How like the policy that is given its clone is (`clone/…`).
            key = at(stream(run.root, "fidelity"), run.updates)
            run.label_quality |= _numbers(compiled_fidelity(self.config)(player, held_out[0], key))

    def _set_level(self, run: "Trainer", player: Player, rng: np.random.Generator) -> bool | None:
        """Put in force what the shield's own decisions call for, or windows of held-out worlds; False: too few of them turned out
        safe; None: there is nothing to go by."""
        risk, safe = self._decisions(run)
        by_decisions = safe.sum() >= ENOUGH
        if not by_decisions:
            found = self._windows(run, rng, Use.THRESHOLDS, ENOUGH)
            if found is None:
                return None
            windows, saved = found
            risk, stays_safe = map(np.asarray, self._score(player, windows, run.root, run.updates))
            sound = np.isfinite(risk)
            risk, safe = risk[sound], unaided(stays_safe, saved, risk)[sound]
        enough = bool(safe.sum() >= ENOUGH)
        run.label_quality |= {BASIS: float(safe.sum()) if enough else 0.0, BY_DECISIONS: float(by_decisions)}
        shield, share = self.config.shield, self.config.calibration.false_alarms
        assert run.level is not None
        level = calibrate_level(risk, safe, share, accepted_risks(shield), int(run.level))
        run.level = jnp.asarray(level, run.level.dtype)
        return enough

    def _decisions(self, run: "Trainer") -> tuple[np.ndarray, np.ndarray]:
        """`of_decisions` of the newest rows, or of all, should those be too few."""
        replay, spec = run.replay, run.interface.spec
        risk, safe = np.zeros(0), np.zeros(0)
        if not np.isfinite(replay.risk).any():
            return risk, safe
        # Where chance acts now and then, a risk is not that of what the policy proposed, nor what came of it the policy's.
        explored = run.foreign is not None and self.config.training.explore > 0
        use = Use.THRESHOLDS if explored else Use.LEARNING
        least, most = (replay.rows_with(worlds, use) for worlds in (EPISODES, MOST_EPISODES))
        for rows in (min(max(replay.kept // RECENT, least), most), replay.kept):
            told = replay.latest(rows)
            counted = told.use == use if explored else told.use != Use.JUDGING
            violating = np.asarray(violates(spec.psi, spec.atoms, told.labels))
            risk, safe = of_decisions(told, counted, violating, self.config.shield.horizon)
            if safe.sum() >= ENOUGH:
                break
        return risk, safe

    def _set_thresholds(self, run: "Trainer", player: Player, rng: np.random.Generator) -> bool | None:
        """Set the labels' thresholds on windows of held-out worlds, where labels are thresholded; as above."""
        if self.config.shield.labels != "mode":
            return True
        found = self._windows(run, rng, Use.THRESHOLDS, ENOUGH)
        if found is None:
            return None
        run.thresholds, safe = self._calibrate(player, found[0], run.root, run.updates)
        return int(safe) >= ENOUGH

    def _windows(
        self, run: "Trainer", rng: np.random.Generator, use: Use, least: int = 1
    ) -> tuple[Experience, np.ndarray] | None:
        """Windows of this use to calibrate by, and in which the backup policy acted after the context; None: there are less than
        so many that lie within one episode."""
        calibration, replay = self.config.calibration, run.replay
        length = calibration.context + self.config.shield.horizon
        if not replay.can_draw(length, use):
            return None
        # What policy and shield do now is what they are judged by, but a few layouts would judge by their luck.
        latest = max(replay.kept // 2, replay.rows_with(EPISODES, use))
        where = replay.draw(rng, (calibration.windows,), length, latest, use)
        windows, acted = replay.windows(*where, length), replay.who_acted(*where, length)[:, calibration.context :]
        whole = ~np.asarray(windows.is_first[:, 1:]).any(axis=1)
        return (windows, np.asarray(acted.any(axis=1))) if whole.sum() >= least else None


def said(decision: Decision) -> np.ndarray:
    """1 − p̃ of every decision for which futures were imagined; NaN of the others."""
    asked = (np.asarray(decision.traces_used) > 0) & (np.asarray(decision.reason) != Reason.NON_FINITE)
    return np.where(asked, 1 - np.asarray(decision.p_safe), np.nan)


def _numbers(found: dict[str, Any]) -> dict[str, float]:
    return {name: float(value) for name, value in found.items()}
