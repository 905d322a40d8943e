"""How a run ends when something fails: what is said, with which exit code, and what is left. The trainer is a dummy."""

import errno
import os
import signal
import subprocess
import sys
import types

import pytest

import ambs.cli.main
from ambs.acting.accounting import Accounts
from ambs.acting.fitting import check_meta
from ambs.agent.networks import CRITICS
from ambs.cli.display import Display
from ambs.config.resolve import resolve, to_dict
from ambs.envs import TooManyFaults
from ambs.errors import RunError, UserError
from ambs.spec.formula import Atoms
from ambs.storage import checkpoint
from ambs.storage.run_folder import RunFolder
from ambs.training import checkpoints, session
from ambs.training.resume import _check_progress
from ambs.training.session import Session, run_to_the_end
from ambs.training.signals import stopping
from ambs.training.trainer import Trainer

CONFIG = resolve("quickstart", changes={"training": {"frames": 1000, "checkpoint_every": 200}})


class Dummy(Trainer):
    """Plays 100 frames a turn and learns nothing."""

    caveat = ""

    def __init__(self, trouble=lambda frames: None):
        self.config = getattr(type(self), "config", CONFIG)
        self.accounts, self.updates, self.trouble = Accounts(1, ("x",)), 0, trouble
        self.interface = types.SimpleNamespace(spec=types.SimpleNamespace(psi="!x", atoms=Atoms(("x",))))
        self.closed = False

    @property
    def finished(self):
        return self.accounts.frames >= self.config.training.frames

    def moves(self):
        self.accounts.frames += 100
        self.trouble(self.accounts.frames)
        yield from ()

    def close(self):
        self.closed = True


@pytest.fixture
def begin(tmp_path, monkeypatch):
    fitting = {"frames": CONFIG.training.action_repeat, "cost": CONFIG.safety.cost}
    monkeypatch.setattr(checkpoints, "capture", lambda trainer: ({}, {"interface": fitting}, {}))

    def make(**options):
        folder = RunFolder.create(
            tmp_path, env="x", method="m", seed=0, config=to_dict(CONFIG), command=[], device=None
        )
        return Session(Dummy(**options), folder)

    return make


def fail(*_args, **_options):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_ends_a_run_and_spares_its_checkpoints(begin, monkeypatch):
    def fill(frames):
        if frames == 600:
            monkeypatch.setattr(os, "write", fail)

    run = begin(trouble=fill)
    with pytest.raises(RunError, match=r"a checkpoint could not be written \(No space left on device\)") as error:
        run.run()
    monkeypatch.undo()
    assert error.value.code == 74
    assert "the checkpoint of frame 400 is whole: ambs resume" in str(error.value)
    assert checkpoint.load(run.folder.checkpoints).step == 400
    assert run.trainer.closed
    RunFolder.open(run.folder.path).claim()  # The lock has gone with the run.


def test_old_checkpoints_that_cannot_be_deleted_do_not_hide_the_new_one(begin, monkeypatch):
    def stick(frames):
        if frames == 600:
            monkeypatch.setattr(os, "unlink", fail)

    run = begin(trouble=stick)
    with pytest.raises(
        RunError, match=r"old checkpoints could not be deleted \(No space.* of frame 600 is whole"
    ) as error:
        run.run()
    monkeypatch.undo()
    assert error.value.code == 74
    assert checkpoint.load(run.folder.checkpoints).step == 600


@pytest.mark.parametrize("call", ["write", "fsync", "replace"])
def test_a_folder_that_cannot_be_written_is_not_left_half_made(tmp_path, monkeypatch, call):
    monkeypatch.setattr(os, call, fail)
    with pytest.raises(RunError, match=r"a run folder could not be written in .* \(No space left on device\)") as error:
        RunFolder.create(tmp_path, env="x", method="m", seed=0, config={}, command=[])
    monkeypatch.undo()
    assert error.value.code == 74
    assert not list(tmp_path.iterdir())


def test_a_run_that_cannot_be_started_leaves_no_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(session, "Trainer", lambda config, **_: Dummy())
    wanted = resolve("quickstart", changes={"training": {"wandb": True}})
    monkeypatch.setattr(Dummy, "config", wanted, raising=False)

    def init(**options):
        raise RuntimeError("no key")

    for module, sentence in (
        (None, r"install the extra `ambs\[wandb\]`"),
        (types.SimpleNamespace(init=init), "no key"),
    ):
        monkeypatch.setitem(sys.modules, "wandb", module)
        with pytest.raises(UserError, match=sentence):
            session.start(wanted, tmp_path, command=[])
        assert not list(tmp_path.iterdir())


def test_a_status_that_cannot_be_written_ends_nothing(begin, monkeypatch):
    run = begin()
    monkeypatch.setattr(RunFolder, "write_status", fail)
    assert run.run() == "finished"
    assert run.folder.log_error == "No space left on device"
    assert checkpoint.load(run.folder.checkpoints).step == 1000


def test_a_disk_that_fails_while_a_run_is_brought_back_is_no_bad_input(begin, monkeypatch):
    """The checkpoint is whole, and the next attempt goes on from it."""
    run = begin(trouble=lambda frames: frames == 300 and run.stop.set())
    assert run.run() == "interrupted"
    monkeypatch.setattr(session, "Trainer", lambda config, **_: Dummy())
    monkeypatch.setattr(session, "Interface", types.SimpleNamespace(from_dict=lambda data: None))
    monkeypatch.setattr(session, "reinstate", lambda trainer, found: None)
    monkeypatch.setattr(session, "_refuse_finished", lambda *_: None)
    monkeypatch.setattr(session, "_without", lambda *_: ())
    with monkeypatch.context() as patch:
        patch.setattr(os, "ftruncate", fail)
        with pytest.raises(
            RunError, match=r"could not be brought back to its checkpoint of frame 300 \(No space"
        ) as error:
            session.reopen(run.folder.path)
    assert error.value.code == 74
    again, _ = session.reopen(run.folder.path)
    assert again.checkpoints.saved == 300
    again.folder.close()
    # Once more, to go on for longer: for good, and the newest checkpoint has the digest of what is so from now on.
    longer, _ = session.reopen(run.folder.path, frames=1500)
    longer.folder.close()
    after = RunFolder.open(run.folder.path)
    assert after.config["training"]["frames"] == 1500
    assert checkpoint.load(after.checkpoints).meta["settings"]["sha256"] == after.digest
    session.reopen(run.folder.path)[0].folder.close()


def test_too_many_faults(begin):
    def break_down(frames):
        if frames == 100:
            raise TooManyFaults("11 faults")

    run = begin(trouble=break_down)
    with pytest.raises(RunError, match=r"11 faults; there is no checkpoint in .* to go on from") as error:
        run.run()
    assert error.value.code == 70
    assert run.folder.read_status()["state"] == "failed"


@pytest.fixture
def heard():
    """Signals that are ignored stay so; whoever runs the tests in the background may have them ignored."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.signal(number, signal.default_int_handler) for number in numbers]
    yield
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


@pytest.mark.usefixtures("heard")
def test_the_first_signal_saves_and_the_second_does_not_wait(begin):
    run = begin(trouble=lambda frames: frames == 300 and signal.raise_signal(signal.SIGTERM))
    with stopping(run.stop):
        assert run.run() == "interrupted"
    assert checkpoint.load(run.folder.checkpoints).step == 300
    with stopping() as stop:
        signal.raise_signal(signal.SIGINT)
        assert stop.is_set()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGHUP)


def test_from_python_nobody_goes_on_with_half_a_run(begin):
    run = begin(trouble=lambda frames: frames == 300 and run.stop.set())
    with pytest.raises(
        KeyboardInterrupt, match=r"stopped after 300 of 1000 frames, which are saved: ambs resume .* goes on"
    ):
        run_to_the_end(run)
    assert checkpoint.load(run.folder.checkpoints).step == 300


def test_handlers_from_elsewhere_are_left_alone(monkeypatch):
    """Python does not know them, and could not put them back."""
    monkeypatch.setattr(signal, "getsignal", lambda number: None)
    monkeypatch.setattr(signal, "signal", fail)
    with stopping() as stop:
        assert not stop.is_set()


@pytest.mark.process
@pytest.mark.parametrize("moment", ["at once", "at the end"])
def test_nobody_left_to_read(moment):
    """A closed pipe changes neither the exit code nor what is said on stderr."""
    code = (
        "import sys, types; from pathlib import Path; from ambs.cli import display, train\n"
        "folder = types.SimpleNamespace(path=Path('run'), words='run', log_error=None)\n"
        "display.Display.begin = lambda *_: None\n"
        "if sys.argv[1] == 'at the end': display.Display.__enter__ = lambda self: self\n"
        "sys.exit(train.watch(lambda **_: types.SimpleNamespace(folder=folder, run=lambda: 'interrupted')))"
    )
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run([sys.executable, "-c", code, moment], stdout=write, stderr=subprocess.PIPE, text=True)
    os.close(write)
    assert (done.returncode, done.stderr) == (75, "")


@pytest.mark.process
def test_nowhere_to_print():
    """`>&-`: what is printed is lost, and nothing else."""
    code = (
        "import os, sys, types; from pathlib import Path; from ambs.cli import display, main, train\n"
        "folder = types.SimpleNamespace(path=Path('run'), words='run', log_error=None)\n"
        "display.Display.begin = lambda *_: None\n"
        "session = types.SimpleNamespace(folder=folder, run=lambda: 'interrupted')\n"
        "main._parse = lambda _: types.SimpleNamespace(run=lambda: train.watch(lambda **_: session))\n"
        "main.main([])"
    )
    words = ["sh", "-c", 'exec "$0" -c "$1" >&-', sys.executable, code]
    done = subprocess.run(words, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (75, "")


def test_a_run_killed_after_its_last_checkpoint_is_said_to_be_finished(begin, monkeypatch):
    """By the checkpoint's own status, and where even that was not written, by the next who asks."""
    run = begin()
    seen = []
    real = RunFolder.write_status
    monkeypatch.setattr(
        RunFolder, "write_status", lambda self, state, **more: seen.append(state) or real(self, state, **more)
    )
    run.run()
    assert seen[-1] == "finished"
    assert seen.count("running") == 4  # Of the checkpoints at 200, 400, 600 and 800.
    monkeypatch.setattr(session, "check_meta", lambda found: None)
    found = checkpoint.Checkpoint(run.folder.path, 1000, {}, {"totals": {"frames": 1000}}, {})
    real(run.folder, "running", frames=1000, agent_steps=1000, updates=0)
    with pytest.raises(UserError, match="is finished"):
        session._refuse_finished(found, run.folder.path, CONFIG)
    assert run.folder.read_status()["state"] == "finished"


def test_counters_that_contradict_each_other_are_refused():
    """By hand: 4 environments, 100 turns, 400 steps of 4 frames; .375 updates a step after 800 of prefill: none is due."""
    trainer = Dummy()
    trainer.config, trainer.per_call = resolve("quickstart", changes={"training": {"envs": 4}}), 6
    sound = {"totals": {"agent_steps": 400, "frames": 1600}, "turns": 100, "updates": 0, "replay_rows": 100}
    _check_progress(trainer, sound)
    for name, value in (("agent_steps", 10**12), ("agent_steps", 401), ("frames", 1601), ("replay_rows", 101)):
        forged = sound | ({name: value} if name in sound else {"totals": sound["totals"] | {name: value}})
        with pytest.raises(UserError, match=f"its {name} cannot be {value} after 100 turns"):
            _check_progress(trainer, forged)
    # 10⁶ turns make 374 700 updates due, of which not one was made.
    late = {"totals": {"agent_steps": 10**6, "frames": 10**6}, "turns": 10**6, "updates": 0, "replay_rows": 10**6}
    with pytest.raises(UserError, match="its updates cannot be 0"):
        _check_progress(trainer, late)
    _check_progress(trainer, late | {"updates": 374_698})


@pytest.mark.parametrize("name", ["turns", "updates", "replay_rows"])
def test_counters_beyond_reason_are_refused(name, tmp_path):
    names = ("last_totals", "sums", "label_quality", "interface", "positions")
    tables = {"totals": {"frames": 0}, **{name: {} for name in names}}
    counters = dict.fromkeys(("turns", "updates", "calibrated", "skipped", "bad_run", "logged", "replay_rows"), 0)
    meta = {**tables, **counters, "critics": list(CRITICS)}
    groups = {name: {} for name in ("learned", "memory", "accounts", "envs", "replay")}
    check_meta(checkpoint.Checkpoint(tmp_path, 0, groups, meta, {}))
    for value in (10**30, 2**31, -1, 1.0):
        with pytest.raises(UserError, match=f"{name} is missing or no such thing"):
            check_meta(checkpoint.Checkpoint(tmp_path, 0, groups, meta | {name: value}, {}))


def test_progress_tells_what_is_known(capsys):
    """No mean of no episodes; speed and time left from the second row on by which there were updates, and never below zero."""
    display = Display()
    watcher, other = display.observer(), display.observer("seed 7")
    run = display.runs[0]
    run.wanted = 1000
    row = {"violations": 0, "updates/skipped": 0, "time/frames_per_second": 777.0}
    watcher.metrics({**row, "frames": 300, "updates": 0})
    watcher.metrics({**row, "frames": 400, "updates": 6})
    first, second = capsys.readouterr().out.splitlines()
    assert first.split() == ["300", "frames", "violations", "so", "far", "0"]
    assert second.split() == ["400", "frames", "violations", "so", "far", "0"]
    run.since = (run.since[0] - 10, run.since[1])
    watcher.episode({"return": 2.5, "violations": 3})
    watcher.metrics({**row, "frames": 600, "updates": 9})
    third = capsys.readouterr().out
    assert "return 2.50  violations/episode 3.0" in third
    assert third.rstrip().endswith("frames/s 777  left 20 s")
    assert run.left(1006) == "0 s"
    other.metrics({**row, "frames": 300, "updates": 0})
    assert capsys.readouterr().out.split() == ["seed", "7", *first.split()]


def test_what_is_ignored_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stopping() as stop:
            signal.raise_signal(signal.SIGHUP)
            assert not stop.is_set()
    finally:
        signal.signal(signal.SIGHUP, before)


def test_exit_codes(monkeypatch, capsys):
    errors = (
        (RunError("no disk", 74), 74),
        (RunError("no env"), 70),
        (UserError("a typo"), 2),
        (MemoryError("9 GB"), 70),
    )
    for error, code in errors:

        def run(error=error):
            raise error

        monkeypatch.setattr(ambs.cli.main, "_parse", lambda _, run=run: types.SimpleNamespace(run=run))
        with pytest.raises(SystemExit) as end:
            ambs.cli.main.main([])
        assert end.value.code == code
        said = "there is not enough memory (9 GB)" if isinstance(error, MemoryError) else str(error)
        assert capsys.readouterr().err == f"ambs: {said}\n"


@pytest.mark.process
def test_a_dead_writer_keeps_nobody_out(tmp_path):
    """A process that holds the lock keeps us out, and no longer once it was killed."""
    run = RunFolder.create(tmp_path, env="x", method="m", seed=0, config={}, command=[])
    run.close()
    code = (
        "import sys, time; from pathlib import Path; from ambs.storage.run_folder import RunFolder\n"
        "run = RunFolder.open(Path(sys.argv[1])); run.claim(); print('mine', flush=True); time.sleep(1000)"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(run.path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "mine\n"
    with pytest.raises(UserError, match="is being written by another process"):
        RunFolder.open(run.path).claim()
    process.kill()
    process.wait()
    process.stdout.close()
    RunFolder.open(run.path).claim()


def test_a_folder_that_cannot_be_written_is_not_claimed(tmp_path, monkeypatch):
    run = RunFolder.create(tmp_path, env="x", method="m", seed=0, config={}, command=[])
    run.close()
    real = os.open

    def refuse(path, flags, *rest):
        if flags & os.O_RDWR:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return real(path, flags, *rest)

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(UserError, match=r"cannot be written to \(config.json: Permission denied\)"):
        RunFolder.open(run.path).claim()
