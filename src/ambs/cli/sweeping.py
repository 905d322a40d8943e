"""What `ambs sweep` and `ambs reproduce` share: the list of runs, a live table while they run, and what is said at the end."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING, Any, Literal

from ambs.errors import STOPPED, extras

if TYPE_CHECKING:
    from collections.abc import Iterable
    from contextlib import AbstractContextManager

    from rich.console import Console
    from rich.table import Table

    from ambs.sweep.attempt import Means
    from ambs.sweep.drive import Engine, Outcome
    from ambs.sweep.plan import Job, Sweep
    from ambs.sweep.status import Found

TODO = {"finished": "–", "running": "wait for the other process", "broken": "resume"}
SHOWN = 20
"""Runs under way that the live table has room for."""
LISTED = 60
"""Runs that are listed one by one."""
REFRESH = 1.0
"""Seconds between two readings of what is under way."""

On = Literal["local", "ray"]


def list_runs(console: Console, found: list[tuple[Job, Found]], gpus: float | None = None) -> None:
    """All runs, what there is of them, and how long the rest would take."""
    from rich import box
    from rich.table import Table

    from ambs.sweep.estimate import estimate, measured, work

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("run", "frames", "train ratio", "there is", "to do"):
        table.add_column(column, justify="right" if column in ("frames", "train ratio") else "left", overflow="fold")
    for job, one in found[:LISTED]:
        ratio = job.settings["training"]["train_ratio"]
        table.add_row(job.name, f"{job.frames:,}", f"{ratio:g}", _there(job, one), TODO.get(one.state, "train"))
    console.print(table)
    if len(found) > LISTED:
        states = Counter(one.state for _, one in found)
        told = ", ".join(f"{count:,} {state}" for state, count in states.items())
        console.print(f"… and {len(found) - LISTED:,} others; of all {len(found):,}: {told}.")
    left = [work(job, one.frames if one.state == "broken" else 0) for job, one in found if one.due]
    for sentence in estimate(left, measured(found), gpus):
        console.print(sentence, soft_wrap=True)


def _there(job: Job, one: Found) -> str:
    there = one.state if one.state in ("missing", "finished") else f"{one.state} at {one.frames:,}"
    there += f" ({', '.join(one.others)})" if one.others else ""
    stopped = one.status.get("stopped")
    if stopped:
        return f"{there}, stopped early: {stopped}"
    return (
        f"{there} after {one.frames:,} frames" if one.state == "finished" and one.frames < 0.98 * job.frames else there
    )


def run_sweep(
    console: Console,
    sweep: Sweep,
    todo: list[Job],
    on: On,
    means: Means,
    *,
    parallel: int | None,
    fleet: int | None,
    address: str | None,
) -> Outcome:
    """Run what is to be done under a live table, and keep `sweep.jsonl`. `fleet`: seeds of a setting in one process."""
    from rich.live import Live

    from ambs.sweep.drive import run_all
    from ambs.sweep.ledger import write_ledger
    from ambs.sweep.local import fleet_size
    from ambs.sweep.plan import as_fleets
    from ambs.sweep.status import find
    from ambs.training.signals import stopping

    # On Ray every run may have a GPU of its own.
    todo = as_fleets(todo, fleet_size(fleet if on == "local" else fleet or 1, parallel, sweep.needs, means.device))
    write_ledger(sweep, [(job, find(job)) for job in sweep.jobs], {})
    live = Live(console=console, auto_refresh=False, transient=True)
    with _engine(sweep, on, means, parallel, address) as engine, stopping() as stop, live:
        outcome = run_all(todo, engine, stop, _Watch(console, live, todo))
    write_ledger(sweep, [(job, find(job)) for job in sweep.jobs], outcome.failed)
    return outcome


def _engine(
    sweep: Sweep, on: On, means: Means, parallel: int | None, address: str | None
) -> AbstractContextManager[Engine]:
    if on == "ray":
        from ambs.sweep.on_ray import on_ray

        return on_ray(sweep.needs, means, address)
    from contextlib import nullcontext

    from ambs.sweep.local import Local, side_by_side

    return nullcontext(Local(means, side_by_side(parallel, sweep.needs, means.device)))


class _Watch:
    """Shows what is under way: a live table on a terminal, a line per beginning and end elsewhere."""

    def __init__(self, console: Console, live: Any, todo: list[Job]) -> None:
        self._console, self._live = console, live
        self._jobs = {one.name: one for job in todo for one in (job, *job.crew)}
        self._seen, self._count = set[str](), len(todo)
        self._looked = 0.0

    def __call__(self, under_way: set[str]) -> None:
        if not self._console.is_terminal:
            for name in sorted(under_way - self._seen):
                self._console.print(f"{name} begins", soft_wrap=True)
        self._seen |= under_way
        if self._console.is_terminal and time.monotonic() - self._looked > REFRESH:
            self._looked = time.monotonic()
            self._live.update(self._table(sorted(under_way)), refresh=True)

    def _table(self, names: list[str]) -> Table:
        from rich import box
        from rich.progress_bar import ProgressBar
        from rich.table import Table

        from ambs.sweep.status import progress

        over = len(self._seen) - len(names)
        told = f"{max(over, 0)} of {self._count} have ended, {len(names)} under way"
        table = Table("run", "", "frames", "violating", box=box.SIMPLE_HEAD, pad_edge=False, caption=told)
        for name in names[:SHOWN]:
            job = self._jobs[name]
            says = [status for one in job.members if (status := progress(one.home))]
            done, violating = (sum(status.get(fact, 0) for status in says) for fact in ("frames", "violations"))
            bar = ProgressBar(job.frames * len(job.members), done, width=30)
            facts = (f"{done:,}", f"{violating:,}") if says else ("waiting or compiling", "")
            table.add_row(name, bar, *facts)
        return table


def close(console: Console, found: Iterable[Found], outcome: Outcome) -> int:
    """Say what is left; 0 if nothing is, 75 if the same command goes on with it, 1 if some run failed."""
    for name, why in outcome.failed.items():
        console.print(f"{name} {why}", soft_wrap=True, markup=False)
    states = [one.state for one in found]
    console.print(f"{states.count('finished')} of {len(states)} runs are finished.")
    if outcome.busy:
        console.print(f"{len(outcome.busy)} are being written by other processes, and were left to them.")
    left = states.count("finished") + len(outcome.failed) < len(states)
    if left:
        console.print("Everything that ran is saved; the same command goes on with it.")
    return 1 if outcome.failed else STOPPED if left else 0


def engine_meant(on: On | None, address: str | None) -> On:
    """Ray where it is installed or an address is given, unless something else is said."""
    from importlib.util import find_spec

    from ambs.errors import UserError

    if on == "local" and address is not None:
        raise UserError("--address is that of a Ray cluster: leave it out with --on local")
    if on == "ray" or address is not None:
        with extras():
            import ray  # noqa: F401 (what is missing is said at once)
        return "ray"
    return on or ("ray" if find_spec("ray") is not None else "local")
