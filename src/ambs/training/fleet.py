"""Several seeds of one configuration in one process: one mapped call decides for all of them, and one learns for all.

Each seed is a run like any other, with environments, replay buffer, folder, checkpoints and random streams of its own; only what
is computed on the device is computed together (`ambs.training.together`). Every run lives in a thread of its own from one request
to the next: it steps its environments, draws its batches, logs and saves while the others do. A run that fails ends alone.
"""

import dataclasses
import functools
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, Literal

import jax

from ambs.acting.adapter import Interface
from ambs.config import Config
from ambs.config.resolve import changed, from_dict, to_dict
from ambs.config.seeds import HERE, check_fleet, refuse_alone
from ambs.data import Experience
from ambs.errors import UserError
from ambs.forks import refuse_after_fork
from ambs.storage.binding import first_difference
from ambs.storage.run_folder import RunFolder
from ambs.training.asking import Request
from ambs.training.compiled import without_seed
from ambs.training.replay import Replay, choose_place, needed
from ambs.training.session import Finished, Session, begin, reopen
from ambs.training.together import HELD, Together
from ambs.training.trainer import Trainer


@dataclasses.dataclass
class Crew:
    """What the members of a fleet have in common before they sail."""

    size: int
    place: Literal["host", "device"] | None = None
    """Where their replay buffers are: all in one place."""
    known: Interface | None = None
    """Their environment; what it is found to be does not depend on the seed."""


def _shared(name: str) -> Any:
    """A field of a run's state that is held together with the others', once they are."""

    def get(self: "Member") -> Any:
        return self.own[name] if self.together is None else self.together.get(name, self.index)

    def put(self: "Member", value: Any) -> None:
        if self.together is None:
            self.own[name] = value
        else:
            self.together.put(name, self.index, value)

    return property(get, put)


class Member(Trainer):
    """A run of a fleet."""

    learned, carry, thresholds, level = map(_shared, HELD)

    def __init__(self, config: Config, crew: Crew, known: Interface | None = None) -> None:
        """`known`: as for any run."""
        self.crew, self.own = crew, dict[str, Any]()
        self.together: Together | None = None
        self.index = 0
        super().__init__(config, known=known or crew.known)
        crew.known = self.interface

    def _ring(self, row: Experience) -> Replay:
        training, crew = self.config.training, self.crew
        capacity = needed(training.capacity, training.steps, training.envs)
        crew.place = crew.place or choose_place(training.replay, row, capacity * crew.size)
        return Replay(
            row, training.capacity, crew.place, runs=crew.size, filled=training.steps, stored=training.store_replay
        )

    def join(self, together: Together, index: int) -> None:
        """From now on what is on the device is held with the others', under this number."""
        self.together, self.index = together, index
        self.own.clear()


class Fleet:
    """Runs that are trained side by side. A fleet of one is that run, and nothing else."""

    def __init__(self, sessions: Sequence[Session], *, mapped: bool | None = None, notes: Sequence[str] = ()) -> None:
        """`mapped`: whether one call computes for all; None: where there is an accelerator. On a CPU a mapped call takes as long
        as all others one after the other, which here run on as many processors as there are."""
        self.sessions = list(sessions)
        self.mapped = jax.default_backend() != "cpu" if mapped is None else mapped
        self.notes = tuple(notes)
        """What whoever resumed it should know, in sentences."""

    def run(self) -> list[str | BaseException]:
        """Train all to the end or until they are told to stop; of each its state, finished or interrupted, or why it failed."""
        if len(self.sessions) == 1:
            return [_ended(self.sessions[0].run)]
        if self.mapped:
            return self._together()
        with ThreadPoolExecutor(len(self.sessions)) as pool:
            endings = pool.map(lambda session: _ended(session.run), self.sessions)
            try:
                return list(endings)
            except BaseException:  # Somebody will not wait for more than what cannot be broken off.
                for session in self.sessions:
                    session.stop.set()
                raise

    def _together(self) -> list[Any]:
        try:
            voyage = _Voyage(self.sessions)
        except BaseException:
            self.abandon()
            raise
        return voyage.run()

    def abandon(self) -> None:
        """End what has not begun: stop the environments, and let others write the folders."""
        for session in self.sessions:
            session.trainer.close()
            session.folder.unlock()


def start_fleet(
    config: Config,
    seeds: Sequence[int],
    out: Path = Path("runs"),
    *,
    command: list[str] | None = None,
    stop: threading.Event | None = None,
    mapped: bool | None = None,
) -> Fleet:
    """New runs of these seeds, in a folder each under `out`, where `{seed}` stands for the seed; if one cannot be started, no
    folder is left.

    They share `stop`. `mapped`: as for `Fleet`.
    """
    refuse_after_fork()
    check_fleet(config, seeds)
    stop, crew, made = stop or threading.Event(), Crew(len(seeds)), list[Session]()
    try:
        for seed in seeds:
            own = dataclasses.replace(config, seed=seed)
            place = Path(str(out).replace(HERE, str(seed)))
            made.append(begin(Member(own, crew), place, command=command, stop=stop))
    except BaseException:
        for session in made:
            session.trainer.close()
            session.folder.remove()
        raise
    return Fleet(made, mapped=mapped)


def reopen_fleet(
    runs: Sequence[Path],
    *,
    frames: int | None = None,
    env: str | None = None,
    trust: bool = False,
    stop: threading.Event | None = None,
    mapped: bool | None = None,
) -> Fleet:
    """Runs of one configuration that go on together, each from its own newest checkpoint; as `reopen` does for one.

    They need not have come equally far. One that is finished stays so, and is named in the fleet's notes; if all are, that is
    refused.
    """
    _check_alike(runs, frames)
    stop, crew, made, notes = stop or threading.Event(), Crew(len(runs)), list[Session](), list[str]()
    common: dict[str, Any] = {"frames": frames, "env": env, "trust": trust, "stop": stop}
    try:
        for run in runs:
            try:
                session, sentences = reopen(run, kind=functools.partial(Member, crew=crew), **common)
            except Finished as error:
                if run == runs[-1] and not made:
                    raise
                notes.append(str(error))
            else:
                made.append(session)
                notes += sentences
    except BaseException:
        Fleet(made).abandon()
        raise
    return Fleet(made, mapped=mapped, notes=notes)


def _check_alike(runs: Sequence[Path], frames: int | None) -> None:
    """Refuse runs that differ in more than the seed, or are named twice; `frames`: to how many all are to go."""
    configs = [from_dict(RunFolder.open(run).config) for run in runs]
    if frames is not None:
        configs = [changed(config, {"training": {"frames": frames}}) for config in configs]
    settings, places = [to_dict(without_seed(config)) for config in configs], [run.resolve() for run in runs]
    for index, run in enumerate(runs):
        if places[index] in places[:index]:
            raise UserError(f"{run} is named twice")
        if difference := first_difference(settings[0], settings[index]):
            name, here, there = difference
            raise UserError(
                f"{run} cannot go on together with {runs[0]}: its {name} is {there}, and should be {here}; resume it by itself"
            )
    refuse_alone(configs[0], len(configs))


def _ended(run: Callable[[], str]) -> str | BaseException:
    """How a run that is on its own ended."""
    try:
        return run()
    except Exception as error:
        return error


class _Voyage:
    """The lives of runs that are computed together: each in a thread of its own until it asks for something."""

    def __init__(self, sessions: Sequence[Session]) -> None:
        members: list[Any] = [session.trainer for session in sessions]
        self.together = Together(members)
        for index, member in enumerate(members):
            member.join(self.together, index)
        self.lives = [session.life() for session in sessions]
        self.threads = [ThreadPoolExecutor(1, f"seed {member.config.seed}") for member in members]
        self.asked: list[Request | None] = [None] * len(members)
        self.endings: list[Any] = [None] * len(members)

    def run(self) -> list[Any]:
        """Until all have ended."""
        try:
            self._go_on({index: functools.partial(next, life) for index, life in enumerate(self.lives)})
            while waiting := self._waiting():
                try:
                    answers = self.together.answer(self.asked)
                except Exception as error:  # Nobody is told anything: all fail.
                    self._throw(error, waiting)
                else:
                    self._go_on(
                        {index: functools.partial(self.lives[index].send, told) for index, told in answers.items()}
                    )
        except BaseException as error:  # Somebody will not wait.
            self._throw(error, self._waiting())
            raise
        finally:
            for thread in self.threads:
                thread.shutdown()
        return self.endings

    def _waiting(self) -> list[int]:
        return [index for index, one in enumerate(self.asked) if one is not None]

    def _throw(self, error: BaseException, members: list[int]) -> None:
        self._go_on({index: functools.partial(self.lives[index].throw, error) for index in members})

    def _go_on(self, steps: dict[int, Callable[[], Request]]) -> None:
        """Let these live until they ask again, or end."""
        futures = {index: self.threads[index].submit(_until_asking, step) for index, step in steps.items()}
        try:
            wait(futures.values())
        finally:  # Interrupted or not: whoever asks must be known to wait.
            for index, future in futures.items():
                self.asked[index], self.endings[index] = future.result()


def _until_asking(step: Callable[[], Request]) -> tuple[Request | None, str | BaseException | None]:
    """The next request of a life, or how it ended."""
    try:
        return step(), None
    except StopIteration as end:
        return None, end.value
    except BaseException as error:
        return None, error
