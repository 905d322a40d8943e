"""Runs as tasks of Ray Core, on one machine or many. What a lost worker or node was at, Ray starts again somewhere else, where it
goes on from the shared run folder."""

import logging
import os
import re
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

from ambs.errors import UserError, extras, one_line
from ambs.storage.files import reason
from ambs.sweep.attempt import Attempt, Ended, Means
from ambs.sweep.drive import PAUSE
from ambs.sweep.plan import Job, Needs
from ambs.training.signals import stopping

HOST_PORT = re.compile(r"([^:/]+):(\d+)")
"""An address at which one can knock; `auto`, and that of a client, Ray looks up by itself."""
MANY = 1_000_000
"""Tasks that Ray may be given at once: it knows best when one has room."""
LOOK = 5.0
"""Seconds between two looks at whether Ray is still there."""
INSIST = 10.0
"""Seconds after which a task that was interrupted, and has not ended, is interrupted again."""
QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    # Children of a worker that ends save first, and end by themselves.
    "RAY_kill_child_processes_on_worker_exit": "0",
}
"""Variables of a Ray that is started here: it reports to nobody, and leaves subprocesses to us."""


@contextmanager
def on_ray(needs: Needs, means: Means, address: str | None) -> Iterator["OnRay"]:
    """Ray, while a sweep lasts: that at `address`; else the one that this machine belongs to; else one for this machine alone."""
    with extras():
        import ray
    engine = OnRay(ray, needs, means, address)
    try:
        yield engine
    finally:
        ray.shutdown()


class OnRay:
    """One task per run."""

    def __init__(self, ray: Any, needs: Needs, means: Means, address: str | None) -> None:
        self._ray, self._address = ray, address
        self._needs, self._means = needs, means
        self._under_way: dict[Any, Job] = {}
        self._connect()

    def _connect(self) -> None:
        connect(self._ray, self._address)
        self._node, self._looked = self._ray.get_runtime_context().get_node_id(), time.monotonic()
        there = self._ray.cluster_resources()
        gpus = 0.0 if self._means.device == "cpu" else self._needs.gpus
        if gpus is None:
            gpus = 1.0 if there.get("GPU") else 0.0
        for name, wanted, has in (("cpus", self._needs.cpus, "CPU"), ("gpus", gpus, "GPU")):
            if wanted > there.get(has, 0.0):
                raise UserError(f"a run takes {name} = {wanted:g}, and all of this Ray has {there.get(has, 0.0):g}")
        means = replace(self._means, share=gpus if 0 < gpus < 1 else 1.0, local_cache=True)
        remote = self._ray.remote(advance)
        options = remote.options(num_cpus=self._needs.cpus, num_gpus=gpus, max_retries=-1)
        self._start = lambda job: options.remote(job, means)

    def room(self) -> int:
        """No limit: tasks wait until there is room."""
        return MANY

    def begin(self, job: Job) -> None:
        """Hand it to Ray; its folder must be the same on every node."""
        crew = tuple(replace(one, home=one.home.absolute()) for one in job.crew)
        self._under_way[self._start(replace(job, home=job.home.absolute(), crew=crew))] = job

    def ended(self) -> list[tuple[Job, Ended]]:
        """Ask Ray; where it has gone away, all are to be begun again, once there is another."""
        if not self._under_way:
            return []
        refs = list(self._under_way)
        try:
            if self._is_dead():
                return self._start_again()
            done, _ = self._ray.wait(refs, num_returns=len(refs), timeout=0, fetch_local=False)
        except _gone(self._ray):
            return self._start_again()
        return [(self._under_way.pop(ref), self._told(ref)) for ref in done]

    def _is_dead(self) -> bool:
        """Whether the node is dead by which this process belongs to Ray: tasks would then wait for ever."""
        if time.monotonic() - self._looked < LOOK:
            return False
        self._looked = time.monotonic()
        return not any(node["NodeID"] == self._node and node["Alive"] for node in self._ray.nodes())

    def _told(self, ref: Any) -> Ended:
        errors = self._ray.exceptions
        try:
            return self._ray.get(ref)
        except errors.RayTaskError as error:
            return Ended("failed", f"could not be begun: {one_line(error.cause)}")
        except errors.RayError as error:  # Of its worker, its node or its result: to be begun again.
            return Ended("stopped", one_line(error))

    def _start_again(self) -> list[tuple[Job, Ended]]:
        lost = [(job, Ended("stopped", "Ray has gone away")) for job in self._under_way.values()]
        self._under_way = {}
        self._ray.shutdown()
        self._connect()
        return lost

    def stop(self) -> list[tuple[Job, Ended]]:
        """Interrupt all tasks, and wait until their runs have saved."""
        found, rest = [], list(self._under_way)
        try:
            while rest and not self._is_dead():
                for ref in rest:  # More than once: Ray promises no more than to try.
                    with suppress(Exception):
                        self._ray.cancel(ref, recursive=False)
                done, rest = self._ray.wait(rest, num_returns=len(rest), timeout=INSIST, fetch_local=False)
                found += [(self._under_way.pop(ref), self._told(ref)) for ref in done]
        except _gone(self._ray):
            pass
        found += [(job, Ended("stopped", "Ray has gone away")) for job in self._under_way.values()]
        self._under_way = {}
        return found


def advance(job: Job, means: Means) -> Ended:
    """The task: one run, started or resumed. It saves first where the worker is asked to end, or has lost its node's raylet."""
    raylet = os.getppid()
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # As in all that a background job has started. It is Ray's way of interrupting a task, and would reach nobody.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    with stopping() as asked:
        attempt = Attempt(job, means)
        while (ended := attempt.poll()) is None:
            if asked.wait(PAUSE) or os.getppid() != raylet:
                return _stopped(attempt)
        return ended


def _stopped(attempt: Attempt) -> Ended:
    """How a run ends that is asked to; whoever interrupts once more waits all the same."""
    while True:
        with suppress(KeyboardInterrupt):
            return attempt.stop()


def connect(ray: Any, address: str | None) -> None:
    """Join a cluster, or start a Ray for this machine that nobody else can reach."""
    quiet = {"logging_level": logging.ERROR, "log_to_driver": False, "ignore_reinit_error": True}
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    address = address or os.environ.get("RAY_ADDRESS") or _running_here()
    if address is None:
        _keep_to_loopback()
        ray.init(address="local", include_dashboard=False, **quiet)
        return
    if (host_port := HOST_PORT.fullmatch(address)) and (why := _unreachable(host_port[1], int(host_port[2]))):
        raise UserError(f"there is no Ray at {address} ({why})")  # Ray itself would try for minutes.
    _bring_token()
    try:
        ray.init(address=address, **quiet)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise UserError(f"there is no Ray at {address} ({one_line(error)})") from None


def _bring_token() -> None:
    """Show a Ray that is joined this user's token, if there is one: with one in the home folder (which a Ray that is started by a
    program leaves there) `ray start` asks for it, and an address that is named is otherwise knocked at without."""
    with suppress(ImportError):  # Ray had no tokens before.
        from ray._private.authentication import authentication_token_setup as tokens

        logging.getLogger(tokens.__name__).setLevel(logging.ERROR)
        tokens.maybe_enable_token_auth_if_token_available(warn_if_disabled=False)


def _running_here() -> str | None:
    """The Ray that `ray start` has started on this machine, if it still answers; not one that another sweep has for itself."""
    from ray._private.utils import read_ray_address

    told = read_ray_address()
    if not told:
        return None
    found = HOST_PORT.fullmatch(told)
    # It may have been left behind by one that is dead.
    return told if found and not _unreachable(found[1], int(found[2]), seconds=1.0) else None


def _unreachable(host: str, port: int, seconds: float = 10.0) -> str:
    """Why nobody answers there; empty where somebody does. Ray takes this machine's own name for its address in the network."""
    why = ""
    for name in (host, socket.gethostname()) if host in ("127.0.0.1", "localhost") else (host,):
        try:
            socket.create_connection((name, port), timeout=seconds).close()
            return ""
        except (OSError, OverflowError) as error:
            why = why or (reason(error) if isinstance(error, OSError) else one_line(error))
    return why


def _keep_to_loopback() -> None:
    """Let a Ray that is started from here listen on 127.0.0.1 alone, as it does by itself where machines are not to be joined
    (macOS, Windows); asked for the address itself it would take that of the network."""
    from ray._private import ray_constants

    ray_constants.ENABLE_RAY_CLUSTER = False
    os.environ[ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR] = "0"


def _gone(ray: Any) -> tuple[type[BaseException], ...]:
    """What Ray raises where it is no longer there."""
    return (ray.exceptions.RaySystemError, ray.exceptions.LocalRayletDiedError, ConnectionError)
