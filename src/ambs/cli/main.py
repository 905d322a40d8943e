"""`ambs`: the entry point. Verbs are dataclasses; whatever is slow to import is imported inside their `run`."""

from __future__ import annotations

import io
import os
import sys
from dataclasses import dataclass
from typing import Annotated, Any, get_args

import tyro

from ambs import __version__
from ambs.cli.check import Check
from ambs.cli.check_env import CheckEnv
from ambs.cli.compare import Compare
from ambs.cli.demo import Demo
from ambs.cli.doctor import Doctor
from ambs.cli.envs import Envs
from ambs.cli.evaluate import Evaluate
from ambs.cli.fit import Fit
from ambs.cli.foresight import Foresight
from ambs.cli.guarantee import Guarantee
from ambs.cli.inspect import Inspect
from ambs.cli.play import Play
from ambs.cli.quickstart import Quickstart
from ambs.cli.record_episodes import RecordEpisodes
from ambs.cli.report import Report
from ambs.cli.reproduce import Reproduce
from ambs.cli.sweep import Sweep
from ambs.cli.train import WHAT, Resume, parse_train
from ambs.cli.verify import Verify
from ambs.cli.words import refuse_empty, refuse_twice
from ambs.config.checks import one_of
from ambs.errors import NO_READER, RUN_FAILED, RunError, UserError, one_line


@dataclass(frozen=True)
class _Train:
    """In the list of verbs only; the settings of `train` depend on each other, so it reads its own."""


class _Version:
    """`ambs --version`."""

    def run(self) -> int:
        """Print it."""
        print(f"ambs {__version__}")
        return 0


Verb = (
    Annotated[Check, tyro.conf.subcommand("check")]
    | Annotated[CheckEnv, tyro.conf.subcommand("check-env")]
    | Annotated[Compare, tyro.conf.subcommand("compare")]
    | Annotated[Demo, tyro.conf.subcommand("demo")]
    | Annotated[Doctor, tyro.conf.subcommand("doctor")]
    | Annotated[Envs, tyro.conf.subcommand("envs")]
    | Annotated[Evaluate, tyro.conf.subcommand("eval")]
    | Annotated[Fit, tyro.conf.subcommand("fit")]
    | Annotated[Foresight, tyro.conf.subcommand("foresight")]
    | Annotated[Guarantee, tyro.conf.subcommand("guarantee")]
    | Annotated[Inspect, tyro.conf.subcommand("inspect")]
    | Annotated[Play, tyro.conf.subcommand("play")]
    | Annotated[Quickstart, tyro.conf.subcommand("quickstart")]
    | Annotated[RecordEpisodes, tyro.conf.subcommand("record-episodes")]
    | Annotated[Report, tyro.conf.subcommand("report")]
    | Annotated[Reproduce, tyro.conf.subcommand("reproduce")]
    | Annotated[Resume, tyro.conf.subcommand("resume")]
    | Annotated[Sweep, tyro.conf.subcommand("sweep")]
    | Annotated[_Train, tyro.conf.subcommand("train", description=WHAT)]
    | Annotated[Verify, tyro.conf.subcommand("verify")]
)


VERBS = [get_args(one)[1].name for one in get_args(Verb)]


def main(args: list[str] | None = None) -> None:
    """Run one verb; a user's mistake gets a sentence and exit code 2, never a traceback."""
    _open_streams()
    os.environ["MPLBACKEND"] = (
        "agg"  # Pictures go into files; who calls from a notebook has one here that draws into it.
    )
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        try:
            code = _run(sys.argv[1:] if args is None else args)
        finally:
            sys.stdout.flush()  # Here, where it can still be caught.
    except BrokenPipeError:
        from ambs.cli.display import silence

        silence()
        code = NO_READER
    sys.exit(code)


def _run(args: list[str]) -> int:
    try:
        return _parse(args).run()
    except UserError as error:
        print(f"ambs: {error}", file=sys.stderr)
        return 2
    except RunError as error:
        print(f"ambs: {error}", file=sys.stderr)
        return error.code
    except BrokenPipeError:
        raise
    except OSError as error:
        print(f"ambs: {_of_files(error)}", file=sys.stderr)
        return 2
    except Exception as error:
        told = _lacking(error)
        if not told:
            raise
        print(f"ambs: {told}", file=sys.stderr)
        return RUN_FAILED
    except KeyboardInterrupt:
        print("\nambs: stopped", file=sys.stderr)
        return 130


def _of_files(error: OSError) -> str:
    """What was wrong with a file or a folder."""
    if isinstance(error, FileExistsError | NotADirectoryError) and error.filename:
        return f"{error.filename} cannot be a folder: it is a file, or lies in one; name a folder"
    return f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}"


def _lacking(error: Exception) -> str:
    """What this machine lacks, memory or a device, if that is why something failed; else nothing."""
    # Errors of JAX are told by name: it need not be there.
    of_device = type(error).__name__ in ("JaxRuntimeError", "XlaRuntimeError") and "RESOURCE_EXHAUSTED" in str(error)
    if isinstance(error, MemoryError) or of_device:
        return f"there is not enough memory{f' ({one_line(error)})' if str(error) else ''}"
    wanted, jax = os.environ.get("JAX_PLATFORMS"), sys.modules.get("jax")
    try:
        if wanted and jax is not None:
            jax.devices()
    except (RuntimeError, AssertionError):  # The latter where JAX finds no plugin at all.
        return f"JAX cannot compute on {wanted} here, as JAX_PLATFORMS has it: unset that, or let it be cpu"
    return ""


def _open_streams() -> None:
    """Let what was closed (`>&-`) lead nowhere; else whatever file is opened next would get its number, and what is printed."""
    while (nowhere := os.open(os.devnull, os.O_RDWR)) < 3:
        os.set_inheritable(nowhere, True)
    os.close(nowhere)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 (open as long as the process)


def _parse(args: list[str]) -> Any:
    if args and not args[0].startswith("-"):
        one_of("the verb", args[0], VERBS)
    if args == ["--version"]:
        return _Version()
    refuse_empty(args)
    if args[:1] == ["train"]:
        return parse_train(args[1:])
    refuse_twice(args)
    return tyro.cli(
        Verb,
        prog="ambs",
        description="Approximate model-based shielding: learn without breaking things on the way. `ambs --version` says which.",
        args=args,
        config=(tyro.conf.OmitArgPrefixes, tyro.conf.OmitSubcommandPrefixes, tyro.conf.FlagCreatePairsOff),
    )
