"""One step as a figure for a paper: the map, the futures' first violations, and the estimate around it."""

from pathlib import Path
from typing import Any

import numpy as np

from ambs.inspector.data import looks
from ambs.inspector.document import promise
from ambs.inspector.recording import Recording

COLOURS = {"goal": "#8fcf85", "hazard": "#9db8e8", "vase": "#0f8a9d", "wall": "#6b7a8f"}
AROUND = 25
"""Steps to either side of the one that is drawn."""


def draw(recording: Recording, step: int, path: Path, kind: str) -> None:
    """Write the figure, `kind` png or svg."""
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


def _verdict(recording: Recording, step: int) -> str:
    arrays = recording.arrays
    if not recording.decided or not recording.facts["shield"]:
        return "no shield"
    counted = f"{int(arrays['violating'][step])} of {int(arrays['traces_used'][step])} futures violate"
    return f"{'overridden' if arrays['overridden'][step] else 'accepted'}, {counted}"


def _place(axes: Any, recording: Recording, step: int) -> None:
    """The map with imagined, real and unshielded continuations; else the camera's picture."""
    arrays = recording.arrays
    axes.set_xticks([])
    axes.set_yticks([])
    if "scene.robot" not in arrays or "scene.items" not in arrays:
        picture = arrays.get("observation.image", arrays.get("picture"))
        if picture is None:
            axes.text(0.5, 0.5, "no map and no picture", ha="center", transform=axes.transAxes)
        else:
            axes.imshow(picture[step])
        return
    _things(axes, recording, step)
    robot, horizon = arrays["scene.robot"], int(recording.facts["settings"]["horizon"])
    axes.plot(*robot[: step + 1, :2].T, color="#5b6675", lw=0.7)
    for path, style in _continuations(arrays, step):
        axes.plot(*np.concatenate([robot[step : step + 1, :2], path]).T, **style)
    axes.plot(*robot[step : step + horizon + 1, :2].T, color="#1a5fa8", lw=1.6, label="what happened")
    axes.plot(*robot[step, :2], "o", color="black", ms=5)
    extent = arrays.get("scene.extent", np.array([-1.0, 1.0, -1.0, 1.0]))
    axes.set(xlim=extent[:2], ylim=extent[2:], aspect="equal")
    axes.legend(fontsize=6, loc="upper center", bbox_to_anchor=(0.5, -0.01), ncols=3, frameon=False)


def _things(axes: Any, recording: Recording, step: int) -> None:
    from matplotlib.colors import CSS4_COLORS
    from matplotlib.patches import Circle, Rectangle

    kinds, own = recording.facts["kinds"], looks(recording.facts)
    for code, x, y, radius in recording.arrays["scene.items"][step].tolist():
        name = kinds[int(code)] if 0 <= code < len(kinds) else ""
        look = own.get(name, {"colour": "brown", "square": name == "vase"})
        colour = COLOURS.get(name, look["colour"] if look["colour"] in CSS4_COLORS else "brown")
        if code < 0:
            continue
        if recording.facts.get("square") or look["square"]:
            axes.add_patch(Rectangle((x - radius, y - radius), 2 * radius, 2 * radius, color=colour, lw=0))
        else:
            axes.add_patch(Circle((x, y), radius, color=colour, lw=0))


def _continuations(arrays: dict[str, np.ndarray], step: int) -> list[tuple[np.ndarray, dict[str, Any]]]:
    found = []
    if "futures.robot" in arrays and arrays["futures.robot"][..., :2].any():
        label: str | None = "imagined"
        for index in np.flatnonzero(arrays["futures.step"] == step).tolist():
            for path in arrays["futures.robot"][index]:
                found.append((path[:, :2], {"color": "#b3261e", "lw": 0.8, "label": label}))
                label = None
    if "twin.robot" in arrays:
        for index in np.flatnonzero(arrays["twin.step"] == step).tolist():
            path = arrays["twin.robot"][index, : int(arrays["twin.taken"][index]), :2]
            found.append((path, {"color": "#e08e2b", "lw": 1.6, "ls": "--", "label": "without the shield"}))
    return found


def _histogram(axes: Any, recording: Recording, step: int) -> None:
    rolled = recording.rolled
    first = recording.arrays["first_violation"][step] if recording.decided else np.zeros(0, int)
    counts = [int((first == k).sum()) for k in range(1, rolled + 2)]
    places = np.arange(1, rolled + 2 if counts[-1] else rolled + 1)
    axes.bar(places, counts[: len(places)], color="#b3261e")
    axes.set_xticks(places[:: -(-len(places) // 16)])
    axes.set_ylabel("futures", fontsize=7)
    axes.set_xlabel("step of the first violation" + (f" ({rolled + 1}: a critic)" if counts[-1] else ""), fontsize=7)
    axes.tick_params(labelsize=6)


def _estimate(axes: Any, recording: Recording, step: int) -> None:
    axes.tick_params(labelsize=6)
    axes.set_xlabel("step of the episode", fontsize=7)
    axes.set_ylabel("p safe", fontsize=7)
    axes.set_ylim(-0.03, 1.05)
    if not recording.decided:
        return
    arrays = recording.arrays
    at = np.arange(max(0, step - AROUND), min(recording.steps, step + AROUND + 1))
    drew = arrays["traces_used"][at] > 0
    shown = np.where(drew, arrays["p_safe"][at], np.nan)
    axes.fill_between(at, *np.where(drew[:, None], arrays["interval"][at], np.nan).T, color="#1a5fa8", alpha=0.2, lw=0)
    axes.plot(at, shown, color="#1a5fa8", lw=1.2, marker="." if drew.sum() < 3 else None)
    axes.axhline(1 - recording.facts["settings"]["safety_level"], color="black", ls="--", lw=0.8)
    axes.plot(at[arrays["overridden"][at]], np.zeros(int(arrays["overridden"][at].sum())), "s", color="#e08e2b", ms=3)
    axes.axvline(step, color="black", lw=0.6)
