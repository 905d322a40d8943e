"""Figures for papers: return on the left, cumulative violations on the right, shaded 95 % intervals; a row per environment."""

from pathlib import Path
from typing import Any

import numpy as np

from ambs.errors import extras

with extras():
    import matplotlib.pyplot as plt

COLOURS = ("#d1495b", "#e08e2b", "#6b7a8f", "#2a6fbb", "#2f9464", "#7a4fb5", "#0f8a9d", "#9a6a3a")
"""The page's, in the same order."""
SIDES = ("return", "violations")
STYLE: dict[Any, Any] = {
    "font.size": 9, "axes.titlesize": 9, "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True,
    "grid.alpha": 0.25, "grid.linewidth": 0.6, "axes.linewidth": 0.8, "legend.frameon": False,
}  # fmt: skip


def draw(summary: dict[str, Any], path: Path, dpi: int = 300) -> None:
    """Write the figure to a PNG."""
    environments = summary["environments"]
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(
            len(environments), 2, figsize=(7.0, 2.5 * len(environments) + 0.4), squeeze=False, layout="constrained"
        )
        for row, environment in zip(axes, environments, strict=True):
            panels = {panel["key"]: panel for panel in environment["panels"]}
            for axis, key, title in zip(row, SIDES, ("Episode return", "Cumulative violations"), strict=True):
                _draw_panel(axis, environment, panels.get(key))
                axis.set(title=_literal(f"{environment['env']}: {title.lower()}"), xlabel="frames")
        _legend(figure, axes[:, 1])
        figure.savefig(path, dpi=dpi, format="png")
        plt.close(figure)


def _legend(figure: Any, axes: Any) -> None:
    """One for all rows, below them, as in the paper."""
    found = {label: handle for axis in axes for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)}
    if found:
        columns = max(1, min(len(found), 110 // (8 + max(map(len, found)))))
        figure.legend(found.values(), found.keys(), loc="outside lower center", ncols=columns, fontsize=8)


def _draw_panel(axis: Any, environment: dict[str, Any], panel: dict[str, Any] | None) -> None:
    if panel is None:
        axis.text(0.5, 0.5, "no data yet", transform=axis.transAxes, ha="center", color="0.5")
        return
    frames = np.array(environment["x"], dtype=float)
    for series in panel["series"]:
        group = environment["groups"][series["group"]]
        colour = COLOURS[group["colour"] % len(COLOURS)]
        style = "-" if group["colour"] < len(COLOURS) else "--"
        label = _literal(group["label"])
        axis.plot(frames, _array(series["mean"]), style, color=colour, lw=1.5, label=label)
        if series["low"] is not None:
            axis.fill_between(frames, _array(series["low"]), _array(series["high"]), color=colour, alpha=0.18, lw=0)
    axis.set_xlim(0, frames[-1])
    axis.ticklabel_format(axis="x", style="sci", scilimits=(0, 4), useMathText=True)
    axis.ticklabel_format(axis="y", style="sci", scilimits=(-4, 6), useMathText=True)


def _array(values: list[float | None]) -> np.ndarray:
    return np.array([np.nan if value is None else value for value in values])


def _literal(text: str) -> str:
    """Text that Matplotlib can draw, does not take for mathematics, and does not hide for its leading underscore."""
    text = text.encode(errors="replace").decode()[:80].replace("$", r"\$")
    return f" {text}" if text.startswith("_") else text
