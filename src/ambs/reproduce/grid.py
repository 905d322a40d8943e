"""What the paper compared, as data: methods × tasks × frames × seeds of each table and figure. Nothing here runs anything.

Goodall and Belardinelli (AAMAS 2024): Table 1; the curves of PointGoal1, PointGoal2 and CarGoal1 (here `figure3`); the long
runs of PointGoal1 (`figure4`); the two comparisons of the appendix. 5 seeds each. The 10M-frame runs had a train ratio of 64
instead of 512, which the paper does not say.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ambs.config.methods import PAPER
from ambs.config.resolve import resolve, to_dict
from ambs.errors import UserError
from ambs.sweep.plan import Job

Settings = tuple[tuple[str, Any], ...]
"""Settings that differ from a preset's, by dotted name."""


@dataclass(frozen=True)
class Variant:
    """A method, and settings that make it one of several versions of it."""

    name: str
    method: str
    settings: Settings = ()


VARIANTS = {
    variant.name: variant
    for variant in (
        *(Variant(name, name) for name in PAPER if name != "lag"),
        # The paper's text and its code have different rules for μ, and each favours another side: both are run.
        Variant("lag", "lag", (("agent.lag_rule", "min"), ("agent.lag_sigma", 1.5e-4))),
        Variant("lag-max", "lag", (("agent.lag_rule", "max"), ("agent.lag_sigma", 1e-6))),
    )
}
LAGS = ("lag", "lag-max")
MOST_SEEDS = 1000
"""Of a grid that can still be listed."""


@dataclass(frozen=True)
class Panel:
    """One task of a comparison and the methods (names in `VARIANTS`) that are compared on it."""

    task: str
    frames: int
    variants: tuple[str, ...]
    train_ratio: float = 512.0
    long: bool = False

    @property
    def folder(self) -> str:
        """Where its runs are, below the grid's folder."""
        return self.task.lower() + ("-long" if self.long else "")

    @property
    def title(self) -> str:
        """The task, as a heading."""
        return f"{self.task} (long run)" if self.long else self.task


@dataclass(frozen=True)
class Comparison:
    """A table or figure of the paper."""

    name: str
    says: str
    panels: tuple[Panel, ...]


def _short(*variants: str) -> tuple[Panel, ...]:
    lengths = (("PointGoal1", 1_000_000), ("PointGoal2", 1_500_000), ("CarGoal1", 1_000_000))
    return tuple(Panel(task, frames, variants) for task, frames in lengths)


def _long(*variants: str) -> Panel:
    return Panel("PointGoal1", 10_000_000, variants, train_ratio=64.0, long=True)


PENALTIES = ("penl", "plpg", "copt")
COMPARISONS = {
    comparison.name: comparison
    for comparison in (
        Comparison(
            "table1",
            "Table 1: episode return and cumulative violations at the end of training",
            (*_short(*PENALTIES, *LAGS), _long(*PENALTIES, *LAGS)),
        ),
        Comparison(
            "figure3", "return and violations on PointGoal1, PointGoal2 and CarGoal1", _short(*PENALTIES, *LAGS)
        ),
        Comparison("figure4", "the long runs (10M frames) on PointGoal1", (_long(*PENALTIES, *LAGS),)),
        Comparison(
            "appendix",
            "DreamerV3, DreamerV3 + LAG and AMBS + PENL on three tasks; AMBS against its penalties in the long run",
            (*_short("dreamer", *LAGS, "penl"), _long("ambs", *PENALTIES)),
        ),
    )
}


@dataclass(frozen=True)
class Scale:
    """How large a grid is made."""

    name: str
    says: str
    preset: str
    seeds: int
    ratio: float = 1.0
    """Share of the paper's train ratio."""
    settings: Settings = ()
    stand_in: str | None = None
    """A task that stands in for PointGoal1; the others are then left out."""
    frames: tuple[int, int] | None = None
    """Frames of its short and its long runs; None: the paper's."""


SCALES = {
    scale.name: scale
    for scale in (
        Scale("paper", "the paper's sizes, frames, train ratios and 5 seeds", "paper-scale", 5),
        Scale(
            "small",
            "the paper's frames from pixels with networks of size `xs`, a quarter of its train ratio, one seed",
            "default",
            1,
            ratio=0.25,
        ),
        Scale(
            "tiny",
            "PointWorld for a few hundred steps: tries this command, shows nothing about the methods",
            "quickstart",
            1,
            ratio=1 / 1280,
            stand_in="PointWorld",
            frames=(1600, 3200),
            settings=(
                ("agent.imagination", 2), ("agent.imagine_from", 4), ("shield.horizon", 2), ("shield.traces", 40),
                ("shield.chunk", 20), ("training.envs", 4), ("training.prefill", 100), ("training.batch", 2),
                ("training.length", 4), ("training.updates_per_call", 2), ("training.log_every", 200),
                ("training.checkpoint_every", 500), ("calibration.every", 0), ("training.capacity", 1200),
            ),
        ),
    )
}  # fmt: skip


@dataclass(frozen=True)
class Cell:
    """One run of a grid."""

    panel: Panel
    variant: Variant
    seed: int

    @property
    def folder(self) -> Path:
        """Where it is, below the grid's folder: `<task>/<method>-s<seed>`, as in `results/`."""
        return Path(self.panel.folder) / f"{self.variant.name}-s{self.seed}"


def panels(
    comparison: Comparison, scale: Scale, methods: tuple[str, ...] = (), tasks: tuple[str, ...] = ()
) -> tuple[Panel, ...]:
    """The comparison's panels at this scale; `methods` and `tasks` leave out all others, unless they are empty."""
    there = [panel for panel in comparison.panels if scale.stand_in is None or panel.task == "PointGoal1"]
    scaled = [_at_scale(panel, scale) for panel in there]
    _all_known("method", methods, [name for panel in scaled for name in panel.variants], comparison)
    _all_known("task", tasks, [panel.task for panel in scaled], comparison)
    found = [
        replace(panel, variants=tuple(name for name in panel.variants if not methods or name in methods))
        for panel in scaled
        if not tasks or panel.task in tasks
    ]
    if not any(panel.variants for panel in found):
        raise UserError(f"{comparison.name} has none of these methods on these tasks")
    return tuple(panel for panel in found if panel.variants)


def _at_scale(panel: Panel, scale: Scale) -> Panel:
    return replace(
        panel,
        task=scale.stand_in or panel.task,
        frames=panel.frames if scale.frames is None else scale.frames[panel.long],
        train_ratio=panel.train_ratio * scale.ratio,
    )


def _all_known(what: str, names: tuple[str, ...], known: list[str], comparison: Comparison) -> None:
    for name in names:
        if name not in known:
            raise UserError(f"{comparison.name} has no {what} {name!r}, only {', '.join(dict.fromkeys(known))}")


def cells(chosen: tuple[Panel, ...], seeds: int) -> tuple[Cell, ...]:
    """All runs, seed by seed, so that a grid that is broken off has compared all methods with few seeds."""
    if not 1 <= seeds <= MOST_SEEDS:
        raise UserError(f"--seeds must be at least 1 and at most {MOST_SEEDS}, got {seeds}")
    return tuple(
        Cell(panel, VARIANTS[name], seed) for seed in range(seeds) for panel in chosen for name in panel.variants
    )


def job(cell: Cell, out: Path, scale: Scale, semantics: str = "corrected") -> Job:
    """The run of a sweep that it is. Runs of other settings that were kept count, too."""
    varied = {"env": cell.panel.task, "method": cell.variant.name}
    return Job(str(cell.folder), out / cell.folder, wanted(cell, scale, semantics), varied, strict=False)


def wanted(cell: Cell, scale: Scale, semantics: str = "corrected") -> dict[str, Any]:
    """All settings that the cell's run has, nested."""
    training = (("training.frames", cell.panel.frames), ("training.train_ratio", cell.panel.train_ratio))
    changes: dict[str, Any] = {"env": cell.panel.task}
    for name, value in (*scale.settings, *training, *cell.variant.settings, ("seed", cell.seed)):
        part, _, last = name.rpartition(".")
        (changes.setdefault(part, {}) if part else changes)[last] = value
    return to_dict(resolve(scale.preset, semantics=semantics, method=cell.variant.method, changes=changes))
