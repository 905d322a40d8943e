"""`ambs eval`: play a trained agent, with and without its shield."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import tyro

from ambs.cli.words import refuse_file
from ambs.errors import UserError

CLONE_ACTS = "this run guards a policy that is given, and what acts here is its clone: --policy names the policy"


@dataclass(frozen=True)
class Evaluate:
    """Play episodes of a trained agent and report return, violations and overrides with 95 % intervals.

    `--shield paired` plays the same worlds with and without the shield and reports the difference.
    """

    run_folder: tyro.conf.Positional[Path]
    """The run folder."""
    episodes: int = 20
    """Episodes to play, on each side if paired."""
    shield: Literal["as-trained", "on", "off", "paired"] = "as-trained"
    """Whether the shield decides; any agent can be put behind its own."""
    spec: str | None = None
    """Hold the agent to another property than in training, over the atoms that its model knows: other Δ, n or Ψ, e.g. 'P>=0.9
    [ G<=30 !hazard ]', or another bounded path formula, e.g. 'P>=0.8 [ !hazard U<=20 goal ]'. Violations are counted by it."""
    shield_kind: Literal["ambs", "recovery", "latent", "critic", "prescient"] | None = None
    """Which futures the shield judges, if not as in training: those of the task policy (ambs), of the backup policy (recovery), a
    few steps (latent), critics (critic), or the simulator's own (prescient, slow)."""
    labels: Literal["mode", "sample", "mean"] | None = None
    """What the shield takes from imagined label probabilities, if not as in training; `sample` heeds a model that is unsure."""
    policy: str = "task"
    """Who acts: the task policy, the backup policy alone, uniformly random actions, or a policy of yours, module:factory or
    file.py:factory; one that the run guards must be named here, for `task` is its clone."""
    seed: int = 0
    """Worlds and noise; other than those of the training."""
    frames: int | None = None
    """Use the checkpoint at this frame; None: the newest."""
    record: Path | None = None
    """Folder for recorded episodes: all that the shield saw, for `ambs inspect`."""
    examine: int | Literal["all"] | None = None
    """Of how many overrides, and of as many near misses (accepted, though a future broke Ψ), a recorded episode tells futures,
    unshielded twin and truth, however long that takes, or of all; None: of 40 and 12 at most, while that takes less time than
    playing."""
    video: Path | None = None
    """Folder for videos of the episodes (.gif)."""
    env: str | None = None
    """The run's environment once more, where it is one of your own (module:factory): a folder's word does not run code."""
    trust: bool = False
    """Take the folder's word: for its environment, if that is none of ours and installed; and for settings that an old checkpoint
    (format 1) has no digest of."""
    json: bool = False
    """Print the figures as JSON and nothing else."""

    def run(self) -> int:
        """Play and report."""
        from ambs.cli.train import prepare_device
        from ambs.config.checks import MOST_EPISODES, one_of, whole
        from ambs.config.resolve import from_dict
        from ambs.storage.run_folder import RunFolder

        if ":" not in self.policy:
            one_of("--policy", self.policy, ("task", "backup", "random"))
        refuse_file("--record", self.record)
        refuse_file("--video", self.video)
        whole("--episodes", self.episodes, 1, MOST_EPISODES)
        whole("--seed", self.seed, 0)
        if self.examine is not None and (self.record is None or (self.examine != "all" and self.examine < 1)):
            raise UserError("--examine must be `all` or a number from 1 on, and goes with --record")
        if self.policy == "random" and (self.shield in ("on", "paired") or self.spec or self.labels):
            raise UserError("--policy random acts without a shield: leave out --shield, --spec and --labels")
        prepare_device("auto", from_dict(RunFolder.open(self.run_folder).config).model.size)
        result = self._play()
        if self.json:
            print(json.dumps(result))
        else:
            _print(result)
            if self.record is not None:
                _say_not_examined(**result["not_examined"])
                print(f"Look at them:  ambs inspect {self.record}")
        return 0

    def _play(self) -> dict[str, Any]:
        from contextlib import nullcontext

        from rich.console import Console
        from rich.progress import Progress

        from ambs.acting.agent import load
        from ambs.acting.compare import Notes, both
        from ambs.acting.evaluate import evaluate, paired, summary
        from ambs.acting.foreign import load_policy
        from ambs.recording.recorder import Recorder
        from ambs.recording.schema import GIVEN

        agent = load(self.run_folder, self.frames, env=self.env, trust=self.trust, say=tell)
        given = load_policy(self.policy) if ":" in self.policy else None
        if agent.config.guards and self.policy == "task":
            tell(CLONE_ACTS)
        wanted = {"labels": self.labels, "kind": self.shield_kind}
        changes = {name: value for name, value in wanted.items() if value is not None}
        trained = "on" if agent.config.shielded and self.policy != "random" else "off"
        shield = trained if self.shield == "as-trained" else self.shield
        if (changes or self.spec is not None) and shield == "off":
            raise UserError(
                "--spec, --labels and --shield-kind change the shield, and it is off: say --shield on, or leave them out"
            )
        if self.shield_kind == "prescient" and self.record is not None:
            raise UserError("what a prescient shield sees are real futures, which are not recorded: leave out --record")
        agent = agent if self.spec is None else agent.held_to(self.spec, tell)
        agent = agent.behind(**changes) if changes else agent
        console = Console(stderr=True)
        bar = Progress(console=console, transient=True) if console.is_terminal and not self.json else None
        notes = None if given is None else Notes(agent)
        common: dict[str, Any] = {"seed": self.seed, "policy": self.policy if given is None else "task", "given": given}
        with bar or nullcontext():
            if bar is not None:
                task = bar.add_task("playing", total=self.episodes)
                common["on_step"] = lambda done: bar.update(task, completed=done)
            facts = {"run": str(self.run_folder), "policy": self.policy, "seed": self.seed, "shield": shield}
            facts |= {"spec": agent.asked} if self.spec is not None else {}
            facts |= {"changed": changes} if changes else {}
            facts |= {"level": agent.config.shield.safety_level, "asked": agent.config.shield.as_asked().safety_level}
            recorder = None
            if self.record or self.video:
                actor = common["policy"] if given is None else GIVEN
                recorder = Recorder(agent, self.record, self.video, actor, self._foresight(), self.examine)
            watcher = both(recorder, notes)
            try:
                if shield == "paired":
                    found = paired(agent, self.episodes, watch=watcher, **common)
                    found.pop("rows")
                else:
                    rows = evaluate(agent, self.episodes, shield=shield == "on", watch=watcher, **common)
                    found = {shield: summary(rows)}
            finally:
                # What was played before it was stopped, or failed, is worth keeping.
                files: dict[str, Any] = {} if recorder is None else {"files": recorder.close()}
                if recorder is not None and recorder.record is not None:
                    overrides, near = recorder.not_examined.tolist()
                    files["not_examined"] = {"overrides": overrides, "near_misses": near}
        clone = {} if notes is None else {"clone": notes.fidelity()}
        return _plain({**facts, **found, **clone, **files})

    def _foresight(self) -> dict[str, Any] | None:
        """What recordings are told of this run's foresight, or None; what cannot be read gets a sentence."""
        from ambs.report.foresight import brief, read_foresight

        try:
            found = read_foresight(self.run_folder)
        except UserError as error:
            print(f"note: {error}; recordings will not tell of it", file=sys.stderr)
            return None
        return None if found is None else brief(found)


def _say_not_examined(overrides: int, near_misses: int) -> None:
    if overrides or near_misses:
        told = f"Not examined: {overrides} of the overrides, {near_misses} of the near misses"
        print(f"{told}; --examine all looks into each of them, which takes longer.")


def tell(sentence: str) -> None:
    """Say it beside the output, so that what is printed stays what it is."""
    print(f"ambs: {sentence}", file=sys.stderr)


def _plain(value: Any) -> Any:
    """Intervals as objects, so that JSON says what the numbers are."""
    from ambs.statistics import Interval

    if isinstance(value, Interval):
        return value._asdict()
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    return value


def _print(result: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    sides = [side for side in ("off", "on") if side in result]
    episodes = result[sides[0]]["episodes"]
    table = Table(title=f"{result['run']}: {episodes} episodes, {result['policy']} policy, mean [95 % CI]")
    for column in ("", *(f"shield {side}" for side in sides), *(["on − off"] if "difference" in result else [])):
        table.add_column(column)
    names = {
        "return": "return per episode",
        "violations": "violating frames per episode",
        "violations_per_1000": "violating frames per 1000",
        "episodes_with_violation": "episodes with a violation",
        "override_rate": "override rate",
        "switches": "control switches per episode",
        "traces_per_decision": "imagined futures per decision",
    }
    for key, title in names.items():
        if not any(key in result[side] for side in sides):
            continue
        cells = [interval_cell(result[side][key]) if key in result[side] else "-" for side in sides]
        if "difference" in result:
            cells.append(interval_cell(result["difference"][key]) if key in result["difference"] else "")
        table.add_row(title, *cells)
    console.print(table)
    otherwise = [f"{name} {value}" for name, value in result.get("changed", {}).items()]
    if asked := [*([result["spec"]] if "spec" in result else []), *otherwise]:
        console.print(
            f"Asked of the shield, other than in training: {'; '.join(asked)}.", highlight=False, markup=False
        )
    if result["level"] != result["asked"] and "on" in result:
        told = f"The shield accepts up to Δ = {result['level']:.3g}, where {result['asked']:g} was asked for"
        console.print(f"{told}: its model is too blurred for less, or was never judged.")
    if result.get("clone"):
        from ambs.acting.compare import clone_remarks

        for remark in clone_remarks(result["clone"]):
            console.print(remark, highlight=False)
    for line in result.get("files", []):
        console.print(f"Wrote {line}", highlight=False, soft_wrap=True)


def interval_cell(values: dict[str, float | None]) -> str:
    """A mean and its interval, for a table."""
    if values["low"] is None:
        return f"{values['mean']:.3g}"
    return f"{values['mean']:.3g} [dim]\\[{values['low']:.3g}, {values['high']:.3g}][/]"
