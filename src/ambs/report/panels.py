"""Which curves a report draws, from which recorded quantities."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from ambs.errors import UserError
from ambs.report.curves import POINTS, Curve, Measure, aggregate, recent_mean, recent_ratio, total
from ambs.report.groups import Group
from ambs.report.runs import COUNTERS
from ambs.spec.bounds import kl_premise

MOST_SINGLE_RUNS = 40
"""Single runs are drawn, in the main panels, if there are no more of them."""


@dataclass(frozen=True)
class Panel:
    """One chart."""

    key: str
    title: str
    section: str
    measure: Measure
    note: str = ""
    least: float = 0.0
    """No value can be lower."""
    log: bool = False
    most: float = np.inf
    """No value can be higher."""


def _metric(key: str, title: str, section: str, note: str = "", least: float = -np.inf, log: bool = False) -> Panel:
    return Panel(key, title, section, recent_mean("metrics", key), note, least, log)


def _share(key: str, title: str, note: str, section: str = "model", least: float = 0.0) -> Panel:
    return Panel(key, title, section, recent_mean("metrics", key), note, least, most=1.0)


OUTCOME, SHIELD, FORESIGHT, MODEL, LOSSES, REST = "outcome", "shield", "foresight", "model", "losses", "rest"
SECTIONS = {
    OUTCOME: "Return and violations",
    SHIELD: "The shield",
    FORESIGHT: "Foresight on worlds held out from learning, and the level in force",
    MODEL: "The model: its KL against what the guarantee needs, and the quality of its labels",
    LOSSES: "Losses",
    REST: "Everything else that was logged",
}
PANELS = (
    Panel("return", "Episode return", OUTCOME, recent_mean("episodes", "return"), "training episodes", -np.inf),
    Panel("violations", "Cumulative violations", OUTCOME, total("violations"), "frames in which Ψ fails"),
    Panel(
        "violations_per_1000", "Violations per 1000 frames", SHIELD, recent_ratio("violations", "frames", 1000.0),
        "frames in which Ψ fails",
    ),
    Panel(
        "override_rate", "Override rate", SHIELD, recent_ratio("overrides", "decisions"), "share of decisions", most=1.0,
    ),
    Panel(
        "switches", "Control switches per 1000 steps", SHIELD, recent_ratio("switches", "agent_steps", 1000.0),
        "between task and backup policy",
    ),
    Panel("traces", "Traces per decision", SHIELD, recent_ratio("traces", "decisions"), "imagined futures"),
    _share("labels/auroc", "AUROC", "of the imagined risk, on held-out worlds; .5 is guessing", FORESIGHT),
    _share("trained/auroc", "AUROC on replayed rows", "the same on what was learnt from", FORESIGHT),
    _share("memorised/auroc", "AUROC by memory", "replayed less held-out: what is not foresight", FORESIGHT, -1.0),
    _share("labels/detected", "Detected", "share of held-out states that fail, at 5 % false alarms", FORESIGHT),
    _metric("labels/imagined_per_real", "Violations imagined per real one", FORESIGHT, "below 1 is too hopeful", 0.0),
    _share("shield/level", "Δ in force", "chance of a violation that the shield tolerates", FORESIGHT),
    _metric(
        "model/kl", "KL of one model step", MODEL,
        "nats; posterior against prior, a surrogate only: Theorem 2's premise is not measurable", 0.0, log=True,
    ),
    _share("labels/false_flags", "False flags", "share of safe windows in which a step is flagged"),
    _share("labels/imagined_false_flags", "False flags, imagined", "the same in imagination"),
    _share(
        "labels/missed_onsets", "Missed onsets", "share of windows that become unsafe in which imagination flags nothing"
    ),
    _share("labels/precision", "Precision", "of flagged steps"),
    _share("labels/recall", "Recall", "of violating steps"),
)  # fmt: skip


def draw_panels(groups: list[Group], at: np.ndarray) -> list[dict[str, Any]]:
    """All panels of which anything is known, as plain values on the grid `at`."""
    single = sum(len(group.runs) for group in groups) <= MOST_SINGLE_RUNS
    found = []
    for panel in (*PANELS, *_others(groups)):
        main = panel.section in (OUTCOME, SHIELD)
        step = 1 if main or len(at) < POINTS else 2
        series = []
        for index, group in enumerate(groups):
            if not group.runs:
                continue
            curve = aggregate(group.runs, panel.measure, at, panel.least, panel.most)
            if np.isfinite(curve.mean).any():
                series.append({"group": index, **_plain(curve, step, single and main and len(group.runs) > 1)})
        if series:
            found.append(
                {
                    "key": panel.key,
                    "title": panel.title,
                    "section": panel.section,
                    "note": panel.note,
                    "log": panel.log,
                    "least": None if panel.least == -np.inf else panel.least,
                    "step": step,
                    "series": series,
                    "lines": needed_alpha(groups) if panel.key == "model/kl" else [],
                }
            )
    return found


def needed_alpha(groups: list[Group]) -> list[dict[str, Any]]:
    """The α that Theorem 2 asks of the model at these groups' settings, as printed: ε²/(2n²)."""
    values: dict[float, str] = {}
    for group in groups:
        for run in group.runs:
            shield = run.config.get("shield")
            try:
                epsilon, horizon = shield["approximation_error"], shield["horizon"]  # type: ignore[index]
                values[kl_premise(float(epsilon), int(horizon))] = f"ε = {epsilon:g}, n = {horizon}"
            except (TypeError, KeyError, ValueError, OverflowError, UserError):
                continue
    return [{"value": value, "label": f"α needed: {value:.2g} ({name})"} for value, name in sorted(values.items())]


def _others(groups: list[Group]) -> list[Panel]:
    """Every other logged number: losses, then the rest, in order of name."""
    names = {name for group in groups for run in group.runs for name in run.metrics}
    names -= {panel.key for panel in PANELS} | set(COUNTERS) | {"shield/override_rate", "shield/traces"}
    losses = sorted(name for name in names if _is_loss(name))
    rest = sorted(names - set(losses))
    return [_metric(name, name, LOSSES) for name in losses] + [_metric(name, name, REST) for name in rest]


def _is_loss(name: str) -> bool:
    part, _, last = name.partition("/")
    return name.endswith("_loss") or (part in ("model", "critic") and not last.endswith(("grad_norm", "value")))


def _plain(curve: Curve, step: int, single: bool) -> dict[str, Any]:
    """Rounded to five digits; the last point is always kept."""
    pick = slice((len(curve.mean) - 1) % step, None, step)
    found: dict[str, Any] = {name: _rounded(getattr(curve, name)[pick]) for name in ("mean", "low", "high")}
    found["seeds"] = curve.seeds[pick].tolist()
    if not np.isfinite(curve.low).any():
        found["low"] = found["high"] = None
    if single:
        found["each"] = [_rounded(row) for row in curve.each[:, pick]]
    return found


def _rounded(values: np.ndarray) -> list[float | None]:
    return [float(f"{value:.5g}") if np.isfinite(value) else None for value in values.tolist()]
