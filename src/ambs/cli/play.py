"""`ambs play ENV`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import tyro

from ambs.errors import UserError, extras

if TYPE_CHECKING:
    import numpy as np

STRIP = 28
"""Height of the strip of labels under each picture, pixels."""
MOST_STEPS = 100_000
"""Pictures that are kept until all are there."""


@dataclass(frozen=True)
class Play:
    """Record an episode as a video, with a strip of the labels under each picture: red where Ψ is violated."""

    env: tyro.conf.Positional[str]
    """An environment, such as ambs/PointGoal1-v0 or PointGoal1; `ambs envs` lists them."""
    policy: Literal["random", "still"] = "random"
    """Who acts: random actions, held for ten frames each, or none at all."""
    video: str = "episode.gif"
    """Where to write it: .gif, or .mp4 where imageio-ffmpeg or ffmpeg is installed."""
    seed: int = 0
    """Seed of layout and policy."""
    steps: int = 300
    """At most so many frames."""
    view: Literal["chase", "top_down", "both"] = "both"
    """From behind the robot, from above, or side by side."""
    size: int = 256
    """Width and height of a view, pixels."""

    def run(self) -> int:
        """Play, draw, write."""
        from ambs.config.checks import MOST_PIXELS, whole
        from ambs.envs import make
        from ambs.spec.formula import Atoms

        whole("--steps", self.steps, 1, MOST_STEPS)
        whole("--seed", self.seed, 0)
        if not 32 <= self.size <= MOST_PIXELS:
            raise UserError(f"size must be at least 32 pixels and at most {MOST_PIXELS}, got {self.size}")
        path = Path(self.video)
        write = _writer(path)
        env: Any = make(self.env, render_mode="rgb_array").unwrapped
        if not isinstance(getattr(env, "atoms", None), Atoms):
            raise UserError(f"{self.env} has no labels to show; `ambs envs` lists environments that have")
        pictures, reward, cost = record(env, self)
        write(path, pictures, env.metadata.get("render_fps", 30))
        env.close()
        print(f"{path}: {len(pictures)} frames, return {reward:.2f}, violations in {cost:g} frames")
        return 0


def record(env: Any, options: Play) -> tuple[list[np.ndarray], float, float]:
    """The pictures of an episode, its return, and the number of frames in which Ψ was violated."""
    import numpy as np

    env.action_space.seed(options.seed)
    action = np.zeros_like(env.action_space.sample())
    _, info = env.reset(seed=options.seed)
    pictures, total, cost = [_drawn(env, info, options)], 0.0, 0.0
    for step in range(options.steps):
        if options.policy == "random" and step % 10 == 0:
            action = env.action_space.sample()
        _, reward, terminated, truncated, info = env.step(action)
        total, cost = total + reward, cost + info["cost"]
        pictures.append(_drawn(env, info, options))
        if terminated or truncated:
            break
    return pictures, total, cost


def _drawn(env: Any, info: dict[str, Any], options: Play) -> np.ndarray:
    """One picture: the views side by side, and under them a field for Ψ and one for each atom."""
    import numpy as np

    with extras():
        from PIL import Image, ImageDraw

    if hasattr(env, "picture"):
        views = ("chase", "top_down") if options.view == "both" else (options.view,)
        scene = np.concatenate([env.picture(view, options.size) for view in views], axis=1)
    else:
        scene = env.render()
    strip = Image.new("RGB", (scene.shape[1], STRIP), (30, 30, 30))
    draw = ImageDraw.Draw(strip)
    fields = [("violated" if info["cost"] else "safe", (200, 40, 40) if info["cost"] else (40, 140, 60))]
    fields += [
        (name, (200, 130, 30) if holds else (70, 70, 70))
        for name, holds in zip(env.atoms.names, info["labels"], strict=True)
    ]
    width = scene.shape[1] / len(fields)
    for index, (text, colour) in enumerate(fields):
        draw.rectangle((index * width + 1, 1, (index + 1) * width - 2, STRIP - 2), fill=colour)
        draw.text(((index + 0.5) * width, STRIP / 2), text, fill=(255, 255, 255), anchor="mm")
    return np.concatenate([scene, np.asarray(strip)])


def _writer(path: Path) -> Any:
    """The function that writes this kind of file; refuses before an episode is played in vain."""
    if not path.parent.is_dir():
        raise UserError(f"video {str(path)!r} cannot be written: there is no folder {str(path.parent)!r}")
    if path.suffix == ".gif":
        return _write_gif
    if path.suffix != ".mp4":
        raise UserError(f"video must end in .gif or .mp4, got {str(path)!r}")
    _ffmpeg()
    return _write_mp4


def _ffmpeg() -> str:
    import importlib
    import shutil

    try:
        bundled = importlib.import_module("imageio_ffmpeg")
    except ImportError:
        found = shutil.which("ffmpeg")
        if found is None:
            raise UserError(
                "an .mp4 needs ffmpeg: `pip install imageio-ffmpeg`, or name the video *.gif instead"
            ) from None
        return found
    return str(bundled.get_ffmpeg_exe())


def _write_gif(path: Path, pictures: list[np.ndarray], fps: int) -> None:
    from PIL import Image

    images = [Image.fromarray(picture) for picture in pictures]
    # Viewers slow down what is quicker than 50 pictures a second.
    duration = max(1000 // fps, 20)
    images[0].save(path, save_all=True, append_images=images[1:], duration=duration, loop=0)


def _write_mp4(path: Path, pictures: list[np.ndarray], fps: int) -> None:
    import subprocess

    height, width = pictures[0].shape[:2]
    source = ["-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{width}x{height}", "-r", str(fps), "-i", "-"]
    # Most players want colour at half the resolution, and so an even number of rows and columns.
    target = ["-vf", "pad=ceil(iw/2)*2:ceil(ih/2)*2", "-pix_fmt", "yuv420p", str(path)]
    command = [_ffmpeg(), "-y", "-loglevel", "error", *source, *target]
    done = subprocess.run(command, input=b"".join(picture.tobytes() for picture in pictures), capture_output=True)
    if done.returncode:
        raise UserError(f"ffmpeg could not write {path}: {done.stderr.decode(errors='replace').strip()}")
