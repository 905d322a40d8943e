"""One step as a figure for a paper: the map, the futures' first violations, and the estimate around it."""

from pathlib import Path
from typing import Any

import numpy as np

from ambs.errors import extras
from ambs.inspector.document import promise
from ambs.recording.schema import Episode, Examination, Facts

COLOURS = {"goal": "#8fcf85", "hazard": "#9db8e8", "vase": "#0f8a9d", "wall": "#6b7a8f"}
AROUND = 25
"""Steps to either side of the one that is drawn."""


def draw(recording: Episode, step: int, path: Path, kind: str) -> None:
    """Write the figure, `kind` png or svg."""
    with extras():
        import matplotlib

    matplotlib.use("agg")
    # A file on disk may hold what matplotlib would take for mathematics.
    with matplotlib.rc_context({"svg.hashsalt": "ambs", "text.parse_math": False}):
        import matplotlib.pyplot as plt

        picture = plt.figure(figsize=(7.2, 3.2), layout="constrained")
        parts: Any = picture.subfigures(1, 2, width_ratios=(1, 1.25))
        left, right = parts
        _place(left.subplots(), recording, step)
        upper, lower = right.subplots(2, 1)
        _histogram(upper, recording, step)
        _estimate(lower, recording, step)
        picture.suptitle(f"step {step}: {_verdict(recording, step)} · {promise(recording)}", fontsize=9)
        picture.savefig(path, format=kind, dpi=200, metadata={"Date": None} if kind == "svg" else None)
        plt.close(picture)


def _verdict(recording: Episode, step: int) -> str:
    decided = recording.steps.decided
    if decided is None or not recording.facts.shield:
        return "no shield"
    counted = f"{int(decided.violating[step])} of {int(decided.traces_used[step])} futures violate"
    return f"{'overridden' if decided.overridden[step] else 'accepted'}, {counted}"


def _place(axes: Any, recording: Episode, step: int) -> None:
    """The map with imagined, real and unshielded continuations; else the camera's picture."""
    scene, steps = recording.scene, recording.steps
    axes.set_xticks([])
    axes.set_yticks([])
    if scene.robot is None or scene.items is None:
        picture = steps.picture if steps.image is None else steps.image
        if picture is None:
            axes.text(0.5, 0.5, "no map and no picture", ha="center", transform=axes.transAxes)
        else:
            axes.imshow(picture[step])
        return
    _things(axes, recording.facts, scene.items[step])
    robot, horizon = scene.robot, int(recording.facts.settings["horizon"])
    axes.plot(*robot[: step + 1, :2].T, color="#5b6675", lw=0.7)
    for path, style in _continuations(recording.examination, step):
        axes.plot(*np.concatenate([robot[step : step + 1, :2], path]).T, **style)
    axes.plot(*robot[step : step + horizon + 1, :2].T, color="#1a5fa8", lw=1.6, label="what happened")
    axes.plot(*robot[step, :2], "o", color="black", ms=5)
    extent = np.array([-1.0, 1.0, -1.0, 1.0]) if scene.extent is None else scene.extent
    axes.set(xlim=extent[:2], ylim=extent[2:], aspect="equal")
    axes.legend(fontsize=6, loc="upper center", bbox_to_anchor=(0.5, -0.01), ncols=3, frameon=False)


def _things(axes: Any, facts: Facts, items: np.ndarray) -> None:
    from matplotlib.colors import CSS4_COLORS
    from matplotlib.patches import Circle, Rectangle

    kinds = facts.kinds
    for code, x, y, radius in items.tolist():
        name = kinds[int(code)] if 0 <= code < len(kinds) else ""
        look = facts.looks.get(name, {"colour": "brown", "square": name == "vase"})
        colour = COLOURS.get(name, look["colour"] if look["colour"] in CSS4_COLORS else "brown")
        if code < 0:
            continue
        if facts.square or look["square"]:
            axes.add_patch(Rectangle((x - radius, y - radius), 2 * radius, 2 * radius, color=colour, lw=0))
        else:
            axes.add_patch(Circle((x, y), radius, color=colour, lw=0))


def _continuations(looked: Examination, step: int) -> list[tuple[np.ndarray, dict[str, Any]]]:
    found, futures, twins = [], looked.futures, looked.twin
    if futures is not None and futures.robot is not None and futures.robot[..., :2].any():
        label: str | None = "imagined"
        for index in np.flatnonzero(futures.step == step).tolist():
            for path in futures.robot[index]:
                found.append((path[:, :2], {"color": "#b3261e", "lw": 0.8, "label": label}))
                label = None
    if twins is not None and twins.robot is not None:
        for index in np.flatnonzero(twins.step == step).tolist():
            path = twins.robot[index, : int(twins.taken[index]), :2]
            found.append((path, {"color": "#e08e2b", "lw": 1.6, "ls": "--", "label": "without the shield"}))
    return found


def _histogram(axes: Any, recording: Episode, step: int) -> None:
    rolled, decided = recording.facts.rolled, recording.steps.decided
    first = np.zeros(0, int) if decided is None else decided.first_violation[step]
    counts = [int((first == k).sum()) for k in range(1, rolled + 2)]
    places = np.arange(1, rolled + 2 if counts[-1] else rolled + 1)
    axes.bar(places, counts[: len(places)], color="#b3261e")
    axes.set_xticks(places[:: -(-len(places) // 16)])
    axes.set_ylabel("futures", fontsize=7)
    axes.set_xlabel("step of the first violation" + (f" ({rolled + 1}: a critic)" if counts[-1] else ""), fontsize=7)
    axes.tick_params(labelsize=6)


def _estimate(axes: Any, recording: Episode, step: int) -> None:
    axes.tick_params(labelsize=6)
    axes.set_xlabel("step of the episode", fontsize=7)
    axes.set_ylabel("p safe", fontsize=7)
    axes.set_ylim(-0.03, 1.05)
    if (decided := recording.steps.decided) is None:
        return
    at = np.arange(max(0, step - AROUND), min(recording.facts.steps, step + AROUND + 1))
    drew = decided.traces_used[at] > 0
    shown = np.where(drew, decided.p_safe[at], np.nan)
    axes.fill_between(at, *np.where(drew[:, None], decided.interval[at], np.nan).T, color="#1a5fa8", alpha=0.2, lw=0)
    axes.plot(at, shown, color="#1a5fa8", lw=1.2, marker="." if drew.sum() < 3 else None)
    axes.axhline(1 - recording.facts.settings["safety_level"], color="black", ls="--", lw=0.8)
    overridden = at[decided.overridden[at]]
    axes.plot(overridden, np.zeros(len(overridden)), "s", color="#e08e2b", ms=3)
    axes.axvline(step, color="black", lw=0.6)
