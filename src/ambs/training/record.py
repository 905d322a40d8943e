"""Recorded episodes: everything the shield saw and did, as arrays; and videos of them."""

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np

from ambs.shield.decide import Decision, Reason
from ambs.training.agent import Agent

FRAMES_PER_SECOND = 20


class Recorder:
    """Watches an evaluation; `close` writes what is left and returns the files.

    `episode-NNNN-on.npz` (or `-off`), time first: `observation.*`, `labels`, `action`, and per frame of the step that follows
    `frame_rewards`, `frame_labels`, `frame_violations`, `frame_valid`; of the shield `proposed`, `overridden`, `p_safe`,
    `interval`, `traces_used`, `violating`, `reason`, `first_violation`, `atom`. The `.json` beside it says what they mean.
    """

    def __init__(self, agent: Agent, record: Path | None, video: Path | None) -> None:
        self.agent, self.record, self.video = agent, record, video
        self.steps: dict[str, list[dict[str, np.ndarray]]] = {}
        self.pictures: dict[str, list[np.ndarray]] = {}
        self.files: list[str] = []
        for folder in (record, video):
            if folder is not None:
                folder.mkdir(parents=True, exist_ok=True)

    def __call__(self, first: int, seen: dict[str, Any]) -> None:
        """Take in one step of a batch whose first episode has this number."""
        pictures = seen["envs"].pictures() if self.video is not None else None
        for env in seen["live"]:
            name = f"episode-{first + env:04d}-{'on' if self.agent.shielded else 'off'}"
            if self.record is not None:
                self.steps.setdefault(name, []).append(self._row(seen, env))
            if pictures is not None:
                self.pictures.setdefault(name, []).append(pictures[env])
            if seen["ended"][env]:
                self._write(name)

    def close(self) -> list[str]:
        """The files that were written; episodes that did not end are written too."""
        for name in {*self.steps, *self.pictures}:
            self._write(name)
        return sorted(self.files)

    def _row(self, seen: dict[str, Any], env: int) -> dict[str, np.ndarray]:
        row = {
            f"observation.{key}": part[env] for key, part in self.agent.interface.observe(seen["observation"]).items()
        }
        row |= {"labels": seen["labels"][env], "action": np.asarray(seen["action"])[env]}
        for key in ("frame_rewards", "frame_labels", "frame_violations", "frame_valid"):
            row[key] = seen["infos"][key][env]
        decision: Decision | None = seen["decision"]
        if decision is not None:
            fields = decision._asdict()
            row |= {key: np.asarray(jax.tree.leaves(value)[0])[env] for key, value in fields.items() if key != "action"}
        return {key: np.array(value) for key, value in row.items()}

    def _write(self, name: str) -> None:
        rows = self.steps.pop(name, [])
        if rows and self.record is not None:
            path = self.record / f"{name}.npz"
            with path.open("wb") as file:
                arrays: dict[str, Any] = {key: np.stack([row[key] for row in rows]) for key in rows[0]}
                np.savez_compressed(file, **arrays)
            facts = self.agent.interface.to_dict() | {
                "format": 1,
                "steps": len(rows),
                "shield": self.agent.shielded,
                "settings": self.agent.config.shield.__dict__,
                "reasons": {reason.name.lower(): int(reason) for reason in Reason},
                "trace_atoms": list(self.agent.player.model.trace_formula()[1].names),
                "thresholds": np.asarray(self.agent.player.thresholds).tolist(),
            }
            path.with_suffix(".json").write_text(json.dumps(facts, indent=1))
            self.files.append(str(path))
        pictures = self.pictures.pop(name, [])
        if pictures and self.video is not None:
            from PIL import Image

            path = self.video / f"{name}.gif"
            images = [Image.fromarray(picture) for picture in pictures]
            pause = 1000 * self.agent.interface.spec.frames // FRAMES_PER_SECOND
            images[0].save(path, save_all=True, append_images=images[1:], duration=max(pause, 20), loop=0)
            self.files.append(str(path))
