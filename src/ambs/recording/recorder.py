"""Recorded episodes: everything the shield saw and did, as arrays; and videos of them."""

import io
import json
from pathlib import Path
from typing import Any

import jax
import numpy as np

from ambs import __version__
from ambs.acting.agent import Agent
from ambs.envs.scene import KINDS, Scene, stacked
from ambs.envs.snapshot import one_env
from ambs.envs.vector.replicas import UNSAVED
from ambs.errors import UserError
from ambs.recording.counterfactuals import Moment
from ambs.recording.examine import Budget, Details
from ambs.shield.rules import Decision, Reason
from ambs.storage.files import write_atomic

FORMAT = 2
FRAMES_PER_SECOND = 20
LARGEST_PICTURE = 128
"""Side of a stored picture (pixels)."""
KINDS_OF_FILES = ("npz", "json", "html")
"""Endings of what belongs to a recorded episode: its arrays, its facts, its page."""


class Recorder:
    """Watches an evaluation; `close` writes what is left and returns the files. docs/run-folder.md tells the format."""

    def __init__(
        self,
        agent: Agent,
        record: Path | None,
        video: Path | None,
        policy: str = "task",
        foresight: dict[str, Any] | None = None,
    ) -> None:
        self.agent, self.record, self.video, self.policy = agent, record, video, policy
        self.foresight = foresight
        """What is known of the agent's foresight (`ambs.report.foresight.brief`); None: it was never measured."""
        self.episodes: dict[str, dict[str, Any]] = {}
        self.pictures: dict[str, list[np.ndarray]] = {}
        self.files: list[str] = []
        self.budget = Budget()
        if record is not None and any(path for kind in KINDS_OF_FILES for path in record.glob(f"episode-*.{kind}")):
            raise UserError(f"{record} already holds recorded episodes: name another folder, or delete them first")
        self.details = Details(agent, self.budget) if record is not None else None
        for folder in (record, video):
            if folder is not None:
                folder.mkdir(parents=True, exist_ok=True)

    def decided(self, first: int, seen: dict[str, Any]) -> None:
        """Take in what there is before a step."""
        if self.record is not None:
            self.budget.timed(self._decided)(first, seen)

    def stepped(self, first: int, seen: dict[str, Any]) -> None:
        """Take in what the step led to."""
        self.budget.timed(self._stepped)(first, seen)

    def played(self, first: int, envs: Any) -> None:
        """A batch of episodes is over: look into their decisions and write them."""
        del first
        extra: dict[str, Any] = {}
        if self.details is not None and self.episodes:
            extra = self.details.work_out(self.episodes, envs)
        self.budget.timed(self._write_all)(extra)

    def close(self) -> list[str]:
        """The files that were written; episodes that did not end are written too."""
        try:
            self._write_all({})
        finally:
            if self.details is not None:
                self.details.close()
        return sorted(self.files)

    def _name(self, number: int) -> str:
        return f"episode-{number:04d}-{'on' if self.agent.shielded else 'off'}"

    def _decided(self, first: int, seen: dict[str, Any]) -> None:
        envs, decision = seen["envs"], seen["decision"]
        scenes = envs.scenes(seen["live"])
        draw = envs.can_draw and not scenes and not self.agent.interface.spec.observation.image
        pictures = envs.pictures(seen["live"]) if draw else {}
        latent = jax.device_get(self.agent.memory.latent) if decision is not None else None
        # A state is needed where a twin may start from it, or where the true world is to be asked.
        asked = decision is not None and (np.any(decision.overridden) or getattr(self.details, "true", None))
        state = envs.get_state() if asked and envs.can_save else None
        # One that is over before its first step, or cannot tell, has no state to go back to.
        lost = np.zeros(envs.num_envs, bool) if state is None else state["over"] | state.get(UNSAVED, False)
        for env in seen["live"]:
            episode = self.episodes.setdefault(
                self._name(first + env),
                {"rows": [], "moments": [], "scenes": [], "env": env, "envs": envs.num_envs, "root": self.agent.root},
            )
            row = self._row(seen, env)
            if not episode["rows"]:
                row["milliseconds"] = np.array(np.nan, np.float32)  # It may have compiled first.
            episode["scenes"].append(scenes.get(env))
            if env in pictures:
                row["picture"] = _made_small(pictures[env])
            episode["rows"].append(row)
            if latent is not None:
                mine = jax.tree.map(lambda leaf, env=env: leaf[env], latent)
                own = one_env(state, env) if state is not None and not lost[env] else None
                proposed = np.asarray(self.agent.raw_proposed)[env]
                episode["moments"].append(Moment(env, self.agent.steps - 1, mine, proposed, own))
            episode["actions"] = envs.action_names

    def _stepped(self, first: int, seen: dict[str, Any]) -> None:
        pictures = seen["envs"].pictures(seen["live"]) if self.video is not None else {}
        for env in seen["live"]:
            name = self._name(first + env)
            if self.record is not None:
                row = self.episodes[name]["rows"][-1]
                for key in ("frame_rewards", "frame_labels", "frame_violations", "frame_valid"):
                    row[key] = np.array(seen["infos"][key][env])
            if env in pictures:
                self.pictures.setdefault(name, []).append(pictures[env])

    def _row(self, seen: dict[str, Any], env: int) -> dict[str, np.ndarray]:
        row = {
            f"observation.{key}": part[env] for key, part in self.agent.interface.observe(seen["observation"]).items()
        }
        row |= {"labels": seen["labels"][env], "action": np.asarray(seen["action"])[env]}
        row["milliseconds"] = np.float32(seen["milliseconds"])
        decision: Decision | None = seen["decision"]
        if decision is not None:
            fields = decision._asdict()
            row |= {key: np.asarray(jax.tree.leaves(value)[0])[env] for key, value in fields.items() if key != "action"}
        return {key: np.array(value) for key, value in row.items()}

    def _write_all(self, extra: dict[str, Any]) -> None:
        for name, episode in self.episodes.items():
            self._write(name, episode, extra.get(name, {"arrays": {}, "left_out": {}}))
        self.episodes = {}
        for name in list(self.pictures):
            self._film(name)

    def _write(self, name: str, episode: dict[str, Any], extra: dict[str, Any]) -> None:
        # An episode that was cut off in the middle of a step does not know what came of it.
        rows = [row for row in episode["rows"] if "frame_valid" in row]
        if not rows or self.record is None:
            return
        arrays: dict[str, Any] = {key: np.stack([row[key] for row in rows]) for key in rows[0] if key != "picture"}
        arrays |= _places(episode["scenes"][: len(rows)]) or _drawn([row.get("picture") for row in rows])
        arrays |= extra["arrays"]
        path, packed = self.record / f"{name}.npz", io.BytesIO()
        stored: dict[str, Any] = {key: _small(key, array) for key, array in arrays.items()}
        np.savez_compressed(packed, **stored)
        facts = self._facts(episode, len(rows), extra["left_out"])
        # The arrays last: where they are, all is.
        write_atomic(path.with_suffix(".json"), json.dumps(facts, indent=1).encode())
        write_atomic(path, packed.getvalue())
        self.files.append(str(path))

    def _facts(self, episode: dict[str, Any], steps: int, left_out: dict[str, int]) -> dict[str, Any]:
        agent = self.agent
        return agent.interface.to_dict() | {
            "format": FORMAT,
            "ambs": __version__,
            "env": agent.config.env,
            "method": agent.config.method,
            "policy": self.policy,
            "checkpoint": agent.frames,
            "foresight": self.foresight,
            "steps": steps,
            "together": episode["envs"],
            "shield": agent.shielded,
            "settings": agent.config.shield.__dict__ | agent.config.safety.__dict__,
            "caveat": agent.config.shield.caveat,
            "reasons": {reason.name.lower(): int(reason) for reason in Reason},
            "trace_atoms": list(agent.player.model.trace_formula()[1].names),
            "thresholds": np.asarray(agent.player.thresholds).tolist(),
            "kinds": list(KINDS),
            "square": any(found is not None and found.square for found in episode["scenes"]),
            "action_names": list(episode.get("actions", ())),
            "left_out": left_out,
        }

    def _film(self, name: str) -> None:
        pictures = self.pictures.pop(name, [])
        if pictures and self.video is not None:
            from PIL import Image

            path = self.video / f"{name}.gif"
            images = [Image.fromarray(picture) for picture in pictures]
            pause = 1000 * self.agent.interface.spec.frames // FRAMES_PER_SECOND
            images[0].save(path, save_all=True, append_images=images[1:], duration=max(pause, 20), loop=0)
            self.files.append(str(path))


def _places(scenes: list[Scene | None]) -> dict[str, np.ndarray]:
    """Scenes as arrays, with nothing in those that are not known; nothing at all if none is."""
    known = next((found for found in scenes if found is not None), None)
    if known is None:
        return {}
    empty = Scene(np.full(3, np.nan, np.float32), np.zeros((0, 4), np.float32), known.extent)
    parts = stacked([found or empty for found in scenes])
    return {f"scene.{key}": part for key, part in parts.items()} | {"scene.extent": known.extent}


def _drawn(pictures: list[np.ndarray | None]) -> dict[str, np.ndarray]:
    """Pictures as an array, those that are not known black; nothing at all if none is known."""
    known = next((picture for picture in pictures if picture is not None), None)
    if known is None:
        return {}
    return {"picture": np.stack([np.zeros_like(known) if picture is None else picture for picture in pictures])}


def _made_small(picture: Any) -> np.ndarray:
    picture = np.asarray(picture)
    step = -(-max(picture.shape[:2]) // LARGEST_PICTURE)
    return picture[::step, ::step]


def _small(key: str, array: Any) -> np.ndarray:
    """Whole numbers no wider than they need be: traces are many."""
    array = np.asarray(array)
    if array.dtype.kind == "i" and key.rpartition(".")[2] in ("first_violation", "atom"):
        return array.astype(np.int16)
    return array
