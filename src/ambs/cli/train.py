"""`ambs train` and `ambs resume`: Algorithm 1 from the command line."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import tyro

from ambs.cli.words import refuse_twice
from ambs.errors import STOPPED, RunError, UserError, one_line

if TYPE_CHECKING:
    from ambs.cli.settings import Train
    from ambs.training.fleet import Fleet
    from ambs.training.session import Session

WHAT = "Train an agent: world model, task policy, backup policy and shield, from scratch."
SWITCHES = {"--shielded": "on", "--no-shielded": "off"}
"""Earlier names of `--shield on` and `--shield off`."""


@dataclass(frozen=True)
class Resume:
    """Go on with a run that was stopped or killed, from its newest intact checkpoint, as if it had never stopped;
    or, with --frames, with a run that is finished."""

    run_folders: tyro.conf.Positional[list[Path]]
    """The run folder; several, which differ in the seed only, go on together (a fleet)."""
    device: Literal["auto", "cpu", "gpu"] = "auto"
    """Where to compute."""
    frames: int | None = None
    """Go to so many frames instead, now and whenever it is resumed again; None: as many as it was to have."""
    env: str | None = None
    """The run's environment once more, where it is one of your own (module:factory): a folder's word does not run code."""
    policy: str | None = None
    """The policy that the run guards once more, module:factory or file.py:factory."""
    trust: bool = False
    """Take the folder's word: for its environment, if that is none of ours and installed; and for settings that an old checkpoint
    (format 1) has no digest of."""

    def run(self) -> int:
        """Train on."""
        if not self.run_folders:
            raise UserError("resume is given no run folder: name one, or several of one configuration")
        first = self.run_folders[0]
        common: dict[str, Any] = {"frames": self.frames, "env": self.env, "trust": self.trust}

        def prepare() -> None:
            from ambs.config.resolve import from_dict
            from ambs.storage.run_folder import RunFolder

            prepare_device(self.device, from_dict(RunFolder.open(first).config).model.size)

        def again(**hooks: Any) -> Session:
            prepare()
            from ambs.acting.foreign import load_policy
            from ambs.training.session import reopen

            hooks["policy"] = None if self.policy is None else load_policy(self.policy)
            session, sentences = reopen(first, **common, **hooks)
            for sentence in sentences:
                print(f"ambs: {sentence}", file=sys.stderr)
            return session

        def all_again(**hooks: Any) -> Fleet:
            prepare()
            from ambs.training.fleet import reopen_fleet

            return reopen_fleet(self.run_folders, **common, **hooks)

        return watch(again) if len(self.run_folders) == 1 else watch_fleet(all_again)


def parse_train(args: list[str]) -> Train:
    """The `train` verb's settings; flags that change the defaults of others are read first."""
    from ambs.cli.settings import Train, flag_aliases
    from ambs.config import PRESETS, Config
    from ambs.config.migration import migrated_flags
    from ambs.config.resolve import resolve

    args = _renamed(migrated_flags(args))
    refuse_twice(args, flag_aliases(Config))
    known = _early(args)
    file = known.pop("config", None)
    guarded = known.pop("policy", None) is not None
    preset = known.pop("preset", "guard" if guarded else "default")
    if guarded:
        known.setdefault("method", "guard")
    notes: list[str] = []
    try:
        changes = read_settings(Path(file)) if file is not None else None
        _refuse_factories(changes or {}, args)
        settings = resolve(preset if preset in PRESETS else "default", changes=changes, say=notes.append, **known)
    except UserError as error:
        if "--help" in args or "-h" in args:
            settings = Config()
        else:
            raise error
    found = tyro.cli(
        Train,
        prog="ambs train",
        args=args,
        default=Train(settings=settings),
    )
    if found.seeds is not None and any(word.partition("=")[0] == "--seed" for word in args):
        raise UserError("--seed is one, --seeds are several: leave one of them out")
    if found.settings.shield.approximation_error == settings.shield.approximation_error:
        for note in notes:
            print(f"ambs: {note}", file=sys.stderr)
    return found


def _renamed(args: list[str]) -> list[str]:
    """Words of a command line in which --spec and --shield stand for their earlier names."""
    found = []
    for word in args:
        flag, equals, value = word.partition("=")
        if flag == "--psi":
            found.append(f"--spec{equals}{value}")
        elif word in SWITCHES:
            found += ["--shield", SWITCHES[word]]
        else:
            found.append(word)
    return found


def _early(args: list[str]) -> dict[str, str]:
    """The flags that change the defaults of others, by name."""
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    for name in ("--preset", "--semantics", "--method", "--spec", "--shield", "--config", "--policy"):
        first.add_argument(name)
    try:
        told, _ = first.parse_known_args(args)
    except argparse.ArgumentError:
        return {}  # tyro tells what is wrong.
    return {name: value for name, value in vars(told).items() if value is not None}


def _refuse_factories(changes: dict[str, Any], args: list[str]) -> None:
    """A file of settings runs no code: an environment that is none of ours must be named on the command line."""
    env = changes.get("env")
    if isinstance(env, str) and ":" in env and not any(word.partition("=")[0] == "--env" for word in args):
        raise UserError(
            f"--config names the environment {env}, whose code would be run: name it yourself (--env {env})"
        )


def read_settings(path: Path) -> dict[str, Any]:
    """The settings of a JSON file, be it one of a run folder."""
    try:
        data = json.loads(path.read_text(), object_pairs_hook=_said_once)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not valid JSON: {error}") from None
    if isinstance(data, dict) and "format" in data and isinstance(data.get("config"), dict):
        data = data["config"]
    if not isinstance(data, dict):
        raise UserError(f"{path} must hold an object of settings")
    return data


def _said_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of a JSON file; of a setting that is there twice, not the last one counts, but none."""
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(name for name in found if sum(name == other for other, _ in pairs) > 1)
        raise UserError(f"{one_line(twice)} is there twice: say it once")
    return found


def prepare_device(device: str, size: str) -> None:
    """Choose where JAX computes and keeps what it compiles; must come before it is asked for anything."""
    if device == "cpu":
        os.environ["JAX_PLATFORMS"] = "cpu"
    elif device == "gpu":
        os.environ["JAX_PLATFORMS"] = "cuda"
    if size == "xxs" and "XLA_FLAGS" not in os.environ:
        # Matrices this small are slower when split among threads, and run as fast with less time spent on compiling them.
        os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false --xla_backend_optimization_level=1"
    import jax

    from ambs.cli.cache import keep_compiled

    if sentence := keep_compiled():
        print(f"ambs: {sentence}", file=sys.stderr)
    if device == "gpu":
        jax.config.update("jax_platforms", "cuda")
        try:
            jax.devices()
        except (RuntimeError, AssertionError):  # The latter where JAX finds no plugin at all.
            raise UserError("there is no GPU that JAX can use here; install `ambs[cuda]` or use --device cpu") from None


def watch(begin: Any, say: Callable[[Session, str], None] | None = None) -> int:
    """Run a session under a display; 0 finished, 75 stopped. A signal counts from the first line on. `say` tells how it ended;
    None: that it can be resumed."""
    from ambs.cli.display import Display, silence
    from ambs.storage.leash import wear
    from ambs.training.signals import stopping

    with stopping() as stop, Display() as display:
        wear(stop)
        session: Session = begin(observers=[display.observer()], stop=stop)
        display.begin(session)
        state = session.run()
    try:
        (say or _say)(session, state)
    except OSError:  # A terminal that has gone away.
        silence()
    return 0 if state == "finished" else STOPPED


def watch_fleet(begin: Callable[..., Fleet]) -> int:
    """`watch`, with runs side by side: 75 if any was stopped, else the code of the first that failed, else 0."""
    from ambs.cli.display import Display, silence
    from ambs.storage.leash import wear
    from ambs.training.signals import stopping

    with stopping() as stop, Display() as display:
        wear(stop)
        fleet = begin(stop=stop)
        for note in fleet.notes:
            print(f"ambs: {note}", file=sys.stderr)
        for session in fleet.sessions:
            session.watched_by(display.observer(f"seed {session.trainer.config.seed}"))
        display.begin(*fleet.sessions)
        endings = fleet.run()
    try:
        _say_all(fleet.sessions, endings)
    except OSError:  # A terminal that has gone away.
        silence()
    failed = [ending for ending in endings if isinstance(ending, BaseException)]
    for error in failed:
        if not isinstance(error, RunError | UserError):
            raise error
    if "interrupted" in endings:
        return STOPPED
    return next((error.code if isinstance(error, RunError) else 2 for error in failed), 0)


def _say_all(sessions: Sequence[Session], endings: Sequence[Any]) -> None:
    for session, ending in zip(sessions, endings, strict=True):
        if isinstance(ending, BaseException):
            print(f"ambs: seed {session.trainer.config.seed} failed: {ending}", file=sys.stderr)
        if session.folder.log_error:
            print(
                f"ambs: some rows of {session.folder.path} could not be logged: {session.folder.log_error}",
                file=sys.stderr,
            )
    of = {
        state: [one.folder for one, ending in zip(sessions, endings, strict=True) if ending == state]
        for state in ("finished", "interrupted")
    }
    if done := of["finished"]:
        paths = " ".join(str(folder.path) for folder in done)
        print(f"Finished: {paths}\nEvaluate one:  ambs eval {done[0].words} --shield paired")
        print(f"See their curves:  ambs report {paths}")
    if stopped := of["interrupted"]:
        # The words of the last name the environment, too, where it must be named.
        words = " ".join([*(str(folder.path) for folder in stopped[:-1]), stopped[-1].words])
        print(f"Stopped; everything is saved. Go on with:  ambs resume {words}")
    sys.stdout.flush()


def _say(session: Session, state: str) -> None:
    path, words = session.folder.path, session.folder.words
    if session.folder.log_error:
        print(f"ambs: some rows could not be logged: {session.folder.log_error}", file=sys.stderr)
    if state == "finished":
        print(f"Finished: {path}\nEvaluate it:  ambs eval {words} --shield paired\nSee its curves:  ambs report {path}")
        if session.early.stopped and session.early.verdict is not None:
            print(f"Given up by its rule: {session.early.verdict.says}")
        else:
            print(f"Go on for longer:  ambs resume {words} --frames {2 * session.trainer.config.training.frames}")
    else:
        print(f"Stopped; everything is saved. Go on with:  ambs resume {words}")
    sys.stdout.flush()
