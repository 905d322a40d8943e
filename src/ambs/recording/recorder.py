"""Recorded episodes: everything the shield saw and did, as arrays; and videos of them."""

import io
import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np

from ambs import __version__
from ambs.acting.agent import Agent
from ambs.envs.scene import Scene, kind_looks, kind_names, stacked
from ambs.envs.snapshot import one_env
from ambs.envs.vector.replicas import UNSAVED
from ambs.errors import UserError, extras
from ambs.recording.counterfactuals import Moment
from ambs.recording.examine import Budget, Details, Limits, Played
from ambs.recording.schema import Decided, Episode, Examination, Facts, Places, Step, stack
from ambs.shield.rules import Decision, Reason
from ambs.storage.files import write_atomic

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
        examine: int | Literal["all"] | None = None,
    ) -> None:
        self.agent, self.record, self.video, self.policy = agent, record, video, policy
        self.foresight = foresight
        """What is known of the agent's foresight (`ambs.report.foresight.brief`); None: it was never measured."""
        self.episodes: dict[str, Played] = {}
        self.pictures: dict[str, list[np.ndarray]] = {}
        self.files: list[str] = []
        self.not_examined = np.zeros(2, int)
        """Overrides and near misses of all episodes that were not looked into."""
        limits = Limits.asked(examine)
        self.budget = Budget(share=limits.share)
        if record is not None and any(path for kind in KINDS_OF_FILES for path in record.glob(f"episode-*.{kind}")):
            raise UserError(f"{record} already holds recorded episodes: name another folder, or delete them first")
        if video is not None:
            with extras():  # Here, not when the first episode is over.
                import PIL  # noqa: F401
        self.details = Details(agent, self.budget, limits) if record is not None else None
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
        extra: dict[str, Examination] = {}
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
            new = Played(self.agent.root, envs.num_envs, action_names=envs.action_names)
            episode = self.episodes.setdefault(self._name(first + env), new)
            step = self._step(seen, env)
            if not episode.steps:
                step.milliseconds = np.array(np.nan, np.float32)  # It may have compiled first.
            if env in pictures:
                step.picture = _made_small(pictures[env])
            episode.steps.append(step)
            episode.scenes.append(scenes.get(env))
            if latent is not None:
                mine = jax.tree.map(lambda leaf, env=env: leaf[env], latent)
                own = one_env(state, env) if state is not None and not lost[env] else None
                proposed = np.asarray(self.agent.raw_proposed)[env]
                episode.moments.append(Moment(env, self.agent.steps - 1, mine, proposed, own, step.labels))

    def _stepped(self, first: int, seen: dict[str, Any]) -> None:
        pictures = seen["envs"].pictures(seen["live"]) if self.video is not None else {}
        for env in seen["live"]:
            name = self._name(first + env)
            if self.record is not None:
                step = self.episodes[name].steps[-1]
                for key in ("frame_rewards", "frame_labels", "frame_violations", "frame_valid"):
                    setattr(step, key, np.array(seen["infos"][key][env]))
            if env in pictures:
                self.pictures.setdefault(name, []).append(pictures[env])

    def _step(self, seen: dict[str, Any], env: int) -> Step:
        """What there is before a step is taken."""
        observed = self.agent.interface.observe(seen["observation"])
        decision: Decision | None = seen["decision"]
        decided = None
        if decision is not None:
            told = decision.evidence._asdict() | decision._asdict()
            parts = {one.name: jax.tree.leaves(told[one.name])[0] for one in fields(Decided)}
            decided = Decided(**{name: np.array(np.asarray(part)[env]) for name, part in parts.items()})
        return Step(
            labels=np.array(seen["labels"][env]),
            action=np.array(np.asarray(seen["action"])[env]),
            milliseconds=np.array(np.float32(seen["milliseconds"])),
            decided=decided,
            **{name: np.array(part[env]) for name, part in observed.items()},
        )

    def _write_all(self, extra: dict[str, Examination]) -> None:
        for name, episode in self.episodes.items():
            self._write(name, episode, extra.get(name, Examination()))
        self.episodes = {}
        for name in list(self.pictures):
            self._film(name)

    def _write(self, name: str, episode: Played, looked: Examination) -> None:
        # An episode that was cut off in the middle of a step does not know what came of it.
        taken = [step for step in episode.steps if step.taken]
        if not taken or self.record is None:
            return
        steps, scene = stack([replace(step, picture=None) for step in taken]), _places(episode.scenes[: len(taken)])
        if scene.robot is None:
            steps.picture = _drawn([step.picture for step in taken])
        facts = self._facts(episode, len(taken), looked.left_out)
        whole = Episode(name, facts, steps, scene, looked)
        self.not_examined += whole.not_examined
        arrays = whole.arrays()
        path, packed = self.record / f"{name}.npz", io.BytesIO()
        stored: dict[str, Any] = {key: _small(key, array) for key, array in arrays.items()}
        np.savez_compressed(packed, **stored)
        # The arrays last: where they are, all is.
        write_atomic(path.with_suffix(".json"), json.dumps(facts.to_json(), indent=1).encode())
        write_atomic(path, packed.getvalue())
        self.files.append(str(path))

    def _facts(self, episode: Played, steps: int, left_out: dict[str, int]) -> Facts:
        agent, told, shield = self.agent, self.agent.interface.to_dict(), self.agent.config.shield
        rolled = None if shield.steps == shield.horizon else shield.steps
        return Facts(
            interface=told,
            atoms=told["atoms"],
            psi=told["psi"],
            frames=told["frames"],
            discrete=told["discrete"],
            ambs=__version__,
            env=agent.config.env,
            method=agent.config.method,
            policy=self.policy,
            checkpoint=agent.frames,
            foresight=self.foresight,
            steps=steps,
            together=episode.together,
            shield=agent.shielded,
            settings=vars(shield) | vars(agent.config.safety) | {"rolled": rolled, "critics": shield.critics_used},
            caveat=shield.caveat,
            reasons={reason.name.lower(): int(reason) for reason in Reason},
            trace_atoms=list(agent.player.model.trace_formula()[1].names),
            thresholds=np.asarray(agent.player.thresholds).tolist(),
            kinds=list(kind_names()),
            looks=kind_looks(),
            square=any(found is not None and found.square for found in episode.scenes),
            action_names=list(episode.action_names),
            left_out=left_out,
        )

    def _film(self, name: str) -> None:
        pictures = self.pictures.pop(name, [])
        if pictures and self.video is not None:
            from PIL import Image

            path = self.video / f"{name}.gif"
            images = [Image.fromarray(picture) for picture in pictures]
            pause = 1000 * self.agent.interface.spec.frames // FRAMES_PER_SECOND
            images[0].save(path, save_all=True, append_images=images[1:], duration=max(pause, 20), loop=0)
            self.files.append(str(path))


def _places(scenes: list[Scene | None]) -> Places:
    """Scenes as arrays, with nothing in those that are not known; nothing at all if none is."""
    known = next((found for found in scenes if found is not None), None)
    if known is None:
        return Places()
    empty = Scene(np.full(3, np.nan, np.float32), np.zeros((0, 4), np.float32), known.extent)
    return Places(**stacked([found or empty for found in scenes]), extent=known.extent)


def _drawn(pictures: list[np.ndarray | None]) -> np.ndarray | None:
    """Pictures as an array, those that are not known black; None if none is known."""
    known = next((picture for picture in pictures if picture is not None), None)
    if known is None:
        return None
    return np.stack([np.zeros_like(known) if picture is None else picture for picture in pictures])


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
