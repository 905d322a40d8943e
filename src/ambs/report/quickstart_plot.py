"""The quickstart's picture, in the manner of the paper's: return on the left, cumulative violations on the right."""

from pathlib import Path
from typing import Any

import numpy as np

from ambs.config.methods import METHODS, title_with_shield
from ambs.errors import extras

with extras():
    import matplotlib.pyplot as plt

COLOURS: dict[str, str] = {name: "#1a6fb0" if method.shielded else "#d62839" for name, method in METHODS.items()}


def draw(episodes: dict[str, list[dict[str, Any]]], path: Path) -> None:
    """Training episodes of each method, to a PNG."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    for method, rows in episodes.items():
        frames = np.array([row["frames"] for row in rows]) / 1000
        style = {"color": COLOURS.get(method), "label": title_with_shield(method)}
        returns = np.array([row["return"] for row in rows])
        left.plot(frames, returns, ".", ms=3, alpha=0.35, color=style["color"])
        left.plot(frames, _smooth(returns), lw=2, **style)
        right.plot(frames, np.cumsum([row["violations"] for row in rows]), lw=2, **style)
    left.set(title="episode return", xlabel="frames (thousands)")
    right.set(title="cumulative violations (frames)", xlabel="frames (thousands)")
    for axes in (left, right):
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    left.legend(frameon=False)
    figure.savefig(path, dpi=140)
    plt.close(figure)


def _smooth(values: np.ndarray, window: int = 16) -> np.ndarray:
    """Mean of the latest `window` values."""
    sums = np.cumsum(np.concatenate([[0.0], values]))
    ends = np.arange(1, values.size + 1)
    starts = np.maximum(0, ends - window)
    return (sums[ends] - sums[starts]) / (ends - starts)
