"""Run folders: what is written can be read, by us and by TensorBoard; a full disk does not end a run; resume cuts."""

import errno
import json
import math
import os
import subprocess
import sys
import types
from datetime import UTC, datetime

import jax.numpy as jnp
import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import ambs
from ambs.errors import RunError, UserError
from ambs.storage.checkpoint import load, save
from ambs.storage.run_folder import RunFolder, read_rows


def make(root, env="ambs/PointGoal1-v0", **changes):
    settings = {"method": "ambs-copt", "seed": 3, "config": {"agent": {"alpha": 1.0}}, "command": ["ambs", "train"]}
    return RunFolder.create(root, env=env, **(settings | changes))


def scalars(run):
    """What TensorBoard shows: {tag: [(step, value)]}."""
    accumulator = EventAccumulator(str(run.tensorboard), size_guidance={"scalars": 0}).Reload()
    return {
        tag: [(event.step, event.value) for event in accumulator.Scalars(tag)]
        for tag in accumulator.Tags()["scalars"]
    }  # fmt: skip


@pytest.fixture
def run(tmp_path):
    with make(tmp_path) as run:
        yield run


def test_create(tmp_path):
    before = datetime.now(UTC).replace(microsecond=0)
    run = make(tmp_path / "runs", device="cpu")
    record = json.loads((run.path / "config.json").read_text())
    created = datetime.fromisoformat(record["created"])
    assert before <= created <= datetime.now(UTC)
    assert run.path.name == f"ambs-PointGoal1-v0-ambs-copt-s3-{created:%Y%m%d-%H%M%S}"
    assert (record["format"], record["env"], record["seed"], record["device"]) == (1, "ambs/PointGoal1-v0", 3, "cpu")
    assert record["config"] == run.config == {"agent": {"alpha": 1.0}}
    assert record["command"] == ["ambs", "train"]
    assert record["versions"]["numpy"] == np.__version__
    assert record["versions"]["python"] == ".".join(map(str, sys.version_info[:3]))
    status = run.read_status()
    assert (status["state"], status["frames"], status["pid"]) == ("running", 0, os.getpid())
    assert {path.name for path in run.path.iterdir()} == {
        "config.json", "status.json", "metrics.jsonl", "episodes.jsonl", "tensorboard", "checkpoints", ".lease-000001",
    }  # fmt: skip
    assert RunFolder.open(run.path).record == record


@pytest.mark.process
def test_commit(tmp_path, monkeypatch):
    """The commit of the sources, whether they differ from it, and nothing if the package only lies in a repository."""
    package = tmp_path / "repo" / "package"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    monkeypatch.setattr(ambs, "__file__", str(package / "__init__.py"))

    def source():
        record = make(tmp_path).record
        return record["commit"], record["modified"]

    def git(*arguments):
        identity = ["-c", "user.name=x", "-c", "user.email=x", "-c", "init.defaultBranch=main"]
        subprocess.run(["git", *identity, *arguments], cwd=package.parent, check=True, capture_output=True)

    assert source() == (None, None)
    git("init")
    git("commit", "--allow-empty", "-m", "x")
    assert source() == (None, None)
    git("add", ".")
    git("commit", "-m", "y")
    commit = (package.parent / ".git" / "refs" / "heads" / "main").read_text().strip()
    assert source() == (commit, False)
    (package / "__init__.py").write_text("x = 1")
    assert source() == (commit, True)


def test_names(tmp_path):
    """Two in a second are two; nothing in a name leads out of the folder."""
    paths = [make(tmp_path).path for _ in range(4)]
    assert len(set(paths)) == 4
    assert {path.name[-2:] for path in paths} & {"-2", "-3", "-4"}
    for name in ("../../up", "/etc", "a b;c$(d)", "..", "", "module:Env-v0"):
        path = make(tmp_path / "x", env=name).path
        assert path.parent == tmp_path / "x"
        assert all(char.isalnum() or char in "_.-" for char in path.name), path.name


def test_create_refuses(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"no run folder can be made in .*file"):
        make(tmp_path / "file")
    with pytest.raises(UserError, match="settings of a run must be finite"):
        make(tmp_path, config={"x": math.inf})


def test_a_read_only_place_is_the_disks_fault(tmp_path, monkeypatch):
    def refuse(*_args, **_options):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(os, "mkdir", refuse)
    with pytest.raises(RunError, match=r"no run folder can be made in .* \(Read-only file system\)") as error:
        make(tmp_path / "new")
    assert error.value.code == 74


def test_a_command_names_an_environment_again_that_is_none_of_ours(tmp_path):
    assert "--env" not in make(tmp_path, config={"env": "ambs/Grid-v0"}).words
    run = make(tmp_path, config={"env": "my world:make"})
    assert run.words == f"{run.path} --env 'my world:make'"


def test_a_path_that_is_no_utf_8_is_on_record(tmp_path):
    word = os.fsdecode(b"a\xffb")
    run = make(tmp_path / word, command=["ambs", word])
    assert RunFolder.open(run.path).record["command"] == ["ambs", word]
    assert RunFolder.open(run.path).digest == run.digest


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (None, r"is not a run folder \(config.json: No such file or directory\)"),
        ("{", "is not valid JSON"),
        ("[]", "not the settings of a run in format 1"),
        ('{"format": 1}', "not the settings of a run in format 1"),
        ('{"format": 2, "config": {}}', "has run format 2, this version of ambs reads 1"),
    ],
)
def test_open_refuses(tmp_path, text, sentence):
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    with pytest.raises(UserError, match=sentence):
        RunFolder.open(tmp_path)


def test_rows_and_events(run):
    """Rows as given, NaN and infinity as null; TensorBoard shows the numbers at their frames."""
    run.log_metrics({"frames": 100, "model/kl": np.float32(0.5), "loss": jnp.asarray(2.0), "bad": math.nan})
    run.flush()
    run.log_metrics({"frames": np.int64(200), "model/kl": 0.25, "loss": -math.inf, "note": "text"})
    run.log_episode({"frames": 150, "return": 7.5, "violations": 2, "safe": False, "labels": {"hazard": np.nan}})
    metrics, episodes = (read_rows(run.path / name) for name in ("metrics.jsonl", "episodes.jsonl"))
    assert abs(metrics[0].pop("time") - datetime.now().timestamp()) < 60
    assert metrics[0] == {"frames": 100, "model/kl": 0.5, "loss": 2.0, "bad": None}
    assert metrics[1]["loss"] is None
    assert episodes[0]["labels"] == {"hazard": None}
    run.flush()
    assert scalars(run) == {
        "model/kl": [(100, 0.5), (200, 0.25)],
        "loss": [(100, 2.0)],
        "episode/return": [(150, 7.5)],
        "episode/violations": [(150, 2.0)],
        "episode/safe": [(150, 0.0)],
    }


def test_resume(run):
    """Rows after the checkpoint go, from the files and from TensorBoard; what is logged then follows the others."""
    run.log_metrics({"frames": 1, "x": 1.0})
    run.log_episode({"frames": 1, "return": 1.0})
    save(run.checkpoints, 1, {}, {"positions": run.positions()})
    run.log_metrics({"frames": 2, "x": 2.0})
    run.log_episode({"frames": 2, "return": 2.0})
    run.close()
    with (run.path / "metrics.jsonl").open("ab") as file:
        file.write(b'{"frames": 3, "x"')

    with RunFolder.open(run.path) as again:
        assert [row["x"] for row in read_rows(run.path / "metrics.jsonl")] == [1.0, 2.0]
        again.cut(load(again.checkpoints).meta["positions"])
        assert scalars(again) == {"x": [(1, 1.0)], "episode/return": [(1, 1.0)]}
        again.log_metrics({"frames": 2, "x": 4.0})
    assert [row["x"] for row in read_rows(run.path / "metrics.jsonl")] == [1.0, 4.0]
    assert scalars(run) == {"x": [(1, 1.0), (2, 4.0)], "episode/return": [(1, 1.0)]}
    assert len(list(run.tensorboard.iterdir())) == 1


def test_a_claim_that_comes_too_late_takes_nothing(tmp_path, monkeypatch):
    """The folder went on for longer between being opened and being locked: what is locked then is a file that is gone."""
    run = make(tmp_path, config={"training": {"frames": 10}})
    late = RunFolder.open(run.path)
    run.extend(10**6)
    gone = types.SimpleNamespace(sure=True, release=lambda: None)
    monkeypatch.setattr("ambs.storage.run_folder.lock", lambda path: gone)
    with pytest.raises(UserError, match="has changed while it was read"):
        late.claim()
    run.still_ours()
    run.close()


def test_torn_line_without_a_cut(run):
    """Whoever goes on after a crash writes whole lines."""
    (run.path / "metrics.jsonl").write_bytes(b'{"frames": 1, "time": 0}\n{"fra')
    run.log_metrics({"frames": 2})
    assert [row["frames"] for row in read_rows(run.path / "metrics.jsonl")] == [1, 2]


def test_cut_refuses(run):
    run.log_metrics({"frames": 1})
    there = run.positions()
    assert there["metrics.jsonl"] == len((run.path / "metrics.jsonl").read_bytes())
    assert there["episodes.jsonl"] == 0
    for wrong, sentence in (
        ({"metrics.jsonl": there["metrics.jsonl"] + 1}, "fewer than the .* rows are missing"),
        ({"metrics.jsonl": 5}, "no end of a line at byte 5"),
        ({"metrics.jsonl": 0, "episodes.jsonl": 1}, "episodes.jsonl has 0 bytes, fewer than the 1"),
    ):
        with pytest.raises(UserError, match=sentence):
            run.cut(there | wrong)
    assert run.positions() == there


def test_read_rows_refuses(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b'{"frames": 1}\nnonsense\n{"frames": 2}\n')
    with pytest.raises(UserError, match=r"line 2 of .*a.jsonl is not a JSON object"):
        read_rows(tmp_path / "a.jsonl")
    with pytest.raises(UserError, match="cannot be read"):
        read_rows(tmp_path / "none.jsonl")


def test_full_disk(run, monkeypatch):
    """Half a line, then no space: the run goes on, files stay whole, and all rows arrive once there is space again."""
    run.log_metrics({"frames": 1, "x": 1.0})
    run.flush()
    real = os.write

    def full(fd, data):
        real(fd, data[: len(data) // 2])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        for frames in (2, 3):
            run.log_metrics({"frames": frames, "x": 1.0})
            run.log_episode({"frames": frames, "return": 0.0})
            run.flush()
        assert [row["frames"] for row in read_rows(run.path / "metrics.jsonl")] == [1]
        assert run.log_error == "No space left on device"
        with pytest.raises(OSError, match="No space"):
            run.write_status("running", frames=3, agent_steps=3, updates=0)
    assert run.read_status()["frames"] == 0
    assert not list(run.path.glob(".tmp-*"))
    run.log_metrics({"frames": 4, "x": 1.0})
    run.flush()
    assert scalars(run) == {"x": [(n, 1.0) for n in (1, 2, 3, 4)], "episode/return": [(2, 0.0), (3, 0.0)]}
    run.write_status("failed", frames=4, agent_steps=2, updates=1, message="no space", best=math.nan)
    status = run.read_status()
    assert (status["state"], status["message"], status["best"]) == ("failed", "no space", None)
    assert status["log_error"] == "No space left on device"


def test_status_refuses(run):
    for text, sentence in (("{", "not valid JSON"), ('{"state": "asleep"}', "not the status of a run")):
        (run.path / "status.json").write_text(text)
        with pytest.raises(UserError, match=sentence):
            run.read_status()
    (run.path / "status.json").unlink()
    with pytest.raises(UserError, match=r"status of .* cannot be read"):
        run.read_status()


@pytest.mark.process
def test_imports_no_learning_code():
    """Readers of a run need neither JAX nor, before something is logged, TensorBoard."""
    code = (
        "import sys, ambs.storage.run_folder, ambs.storage.checkpoint; print({'jax', 'tensorboard'} & set(sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"


def test_the_run_inside_is_pointed_at(tmp_path):
    (tmp_path / "copt" / "a-run").mkdir(parents=True)
    (tmp_path / "copt" / "a-run" / "config.json").write_text("{}")
    with pytest.raises(UserError, match=r"did you mean .*copt.a-run"):
        RunFolder.open(tmp_path / "copt")
    with pytest.raises(UserError, match=r"did you mean .*copt.a-run"):
        RunFolder.open(tmp_path)
