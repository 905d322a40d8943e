"""A sheet of frames: MuJoCo's beside the ray-caster's and their absolute difference.

    python tools/frames.py tests/golden/*Goal?.npz --out docs/frames.png [--redraw]

`--redraw` lets MuJoCo draw the recorded states again where the recording holds an all-black frame (needs OpenGL).
"""

from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib
import numpy as np

from ambs.envs.safety_gym.camera import Camera
from ambs.envs.safety_gym.gl import MujocoCamera

matplotlib.use("agg")
import matplotlib.pyplot as plt

GAIN = 4


def main() -> None:
    """Draw the sheet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, default=Path("docs/frames.png"))
    parser.add_argument("--rows", type=int, default=4)
    parser.add_argument("--redraw", action="store_true")
    args = parser.parse_args()
    panels = [_panel(path, args.rows, args.redraw) for path in args.files]
    figure, axes = plt.subplots(args.rows, 3 * len(panels), figsize=(3.3 * len(panels), 1.12 * args.rows + 0.5))
    for n, (name, theirs, ours) in enumerate(panels):
        error = np.abs(theirs.astype(int) - ours)
        captions = (
            "MuJoCo",
            f"ray-caster\n{name}: here mean |difference| {error.mean():.2f} of 255",
            f"|difference| × {GAIN}",
        )
        shown = theirs, ours, np.clip(GAIN * error, 0, 255).astype(np.uint8)
        for k in range(3):
            axes[0, 3 * n + k].set_title(captions[k].split("\n")[0], fontsize=7, pad=3)
            for row in range(args.rows):
                axes[row, 3 * n + k].imshow(shown[k][row], interpolation="nearest")
        axes[-1, 3 * n + 1].set_xlabel(captions[1].split("\n")[1], fontsize=7)
    for axis in axes.ravel():
        axis.set(xticks=[], yticks=[])
        axis.spines[:].set_visible(False)
    figure.subplots_adjust(0.01, 0.07, 0.99, 0.94, 0.04, 0.04)
    figure.savefig(args.out, dpi=110)


def _panel(path: Path, rows: int, redraw: bool) -> tuple[str, np.ndarray, np.ndarray]:
    """Name, MuJoCo's frames and ours of one file: those with most to see among the usable ones, spread over it."""
    data = np.load(path)
    robot = "car" if path.stem.startswith("Car") else "point"
    steps = data["frame_step"]
    episode, step = np.repeat(np.arange(len(steps)), steps.shape[1]), steps.ravel()
    frames = data["frame"].reshape(-1, *data["frame"].shape[2:])
    usable = np.flatnonzero(frames.reshape(len(frames), -1).any(1))
    redrawn = redraw and len(usable) < rows
    candidates = np.arange(len(frames)) if redrawn else usable
    pos = data["vase_pos"][episode, step]
    scene = [
        data["agent_pos"][episode, step],
        data["agent_mat"][episode, step].reshape(-1, 3, 3),
        data["goal"][episode, step][:, :2],
        data["layout_hazards"][episode],
        pos,
        data["vase_mat"][episode, step].reshape(*pos.shape, 3),
    ]
    scene = [array[candidates].astype(np.float32) for array in scene]
    ours = np.asarray(Camera(robot, size=frames.shape[1]).render(*scene))
    colours = [len(np.unique(image.reshape(-1, 3), axis=0)) for image in ours]
    parts = np.array_split(np.arange(len(candidates)), rows)
    best = np.array([part[np.argmax(np.asarray(colours)[part])] for part in parts if len(part)])
    best = np.resize(best, rows)
    if redrawn:
        theirs = MujocoCamera(robot, size=frames.shape[1]).render(*(array[best] for array in scene))
        return f"{path.stem} (redrawn)", theirs, ours[best]
    return path.stem, frames[candidates[best]], ours[best]


if __name__ == "__main__":
    main()
