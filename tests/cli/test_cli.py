"""The command line as a user meets it, in fresh processes where that matters."""

import ast
import dataclasses
import inspect
import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import jax
import pytest

import ambs.cli.check
from ambs.cli.main import main
from ambs.cli.settings import Train
from ambs.envs.worlds.point_world import PointWorldEnv


def run(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ambs", *args], capture_output=True, text=True, timeout=300, check=False
    )


@pytest.mark.process
def test_help_is_quick_and_light():
    """Nothing heavy is imported for help; wall time is a benchmark's business, the import list is exact."""
    code = (
        "import sys\n"
        "from ambs.cli.main import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit: pass\n"
        "print(sorted({'jax', 'numpy', 'scipy', 'matplotlib', 'gymnasium', 'mujoco', 'lark'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip().endswith("[]")
    for verb in ("check", "demo", "guarantee"):
        assert verb in done.stdout


@pytest.mark.process
def test_pictures_are_drawn_whoever_calls():
    """A notebook hands its own way of drawing on to the commands it runs, which may lack that."""
    code = (
        "from ambs.cli.main import main\n"
        "try:\n    main(['--version'])\nexcept SystemExit: pass\n"
        "import matplotlib; print(matplotlib.get_backend())"
    )
    settings = {**os.environ, "MPLBACKEND": "module://of_a_notebook"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=settings, check=False)
    assert done.stdout.endswith("\nagg\n"), done.stderr


def test_guarantee_as_json(capsys):
    options = {
        "--safety-level": ".1", "--approximation-error": ".09", "--failure-probability": ".01", "--horizon": "30",
        "--traces": "512",
    }  # fmt: skip
    with pytest.raises(SystemExit) as stop:
        main(["guarantee", *(word for pair in options.items() for word in pair), "--json"])
    assert stop.value.code == 0
    report = json.loads(capsys.readouterr().out)
    assert report["theorem1"]["traces_needed"] == 328
    assert report["theorem1"]["met"] is True
    wanted = {
        "traces_needed": 1309, "met": False, "epsilon_achieved": 0.1439, "delta_achieved": 0.2515,
        "alpha_needed": 4.5e-06, "alpha_needed_chain_rule": 1.35e-04, "premise": "not measurable",
    }  # fmt: skip
    assert {key: report["theorem2"][key] for key in wanted} == wanted
    assert report["accept"]["max_violating"] == 5
    assert report["accept"]["traces"] == 512


def test_guarantee_as_a_table(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["guarantee", "--kl", "2.5"])
    assert stop.value.code == 0
    table = capsys.readouterr().out
    for words in ("not measurable", "not met", "328", "1309", "surrogate", "2.5"):
        assert words in table


QUICK = ["train", "--dry-run", "--preset", "quickstart"]


def no_battery():
    """A factory whose environment cannot be started."""

    class Flat(PointWorldEnv):
        def reset(self, **_):
            raise RuntimeError("no battery")

    return Flat()


def idle():
    """A factory of a policy."""
    return lambda observation: [0.0, 0.0]


RESULTS = str(Path(__file__).parents[2] / "results" / "pointgoal2")


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["guarantee", "--approximation-error", ".2"], "must not exceed"),
        (["guarantee", "--failure-probability", "1.5"], "δ"),
        (["guarantee", "--traces", "0"], "traces"),
        (["guarantee", "--horizon", "0"], "horizon"),
        (["guarantee", "--safety-level", "nan"], "Δ"),
        (["guarantee", "--kl", "-1"], "at least 0"),
        (["guarantee", "--kl", "inf"], "finite"),
        (["guarantee", "--approximation-error", "1e-200"], "ε"),
        (["guarantee", "--failure-probability", "1e-320"], "δ"),
        (["guarantee", "--horizon", "1" + 400 * "0"], "horizon"),
        (["demo", "--seed", "-1"], "--seed"),
        (["demo", "--seed", "9223372036854775808"], "--seed"),
        (["play", "PointWorld", "--seed", "-1"], "--seed must be a whole number of at least 0, got -1"),
        (["train", "--dry-run", "--agent.alpha", "-3"], "alpha must be at least 0"),
        (["verify", "golden", __file__], "cannot be read as a recording"),
        (["demo", "--episodes", "1", "--out", "/dev/null/x"], "/dev/null"),
        (["check", "P>=0.9 [ G<=30 !hazrd ]", "--atoms", "hazard"], "unknown atom 'hazrd'; known atoms: hazard"),
        (["check", "a &"], "ends too early"),
        (["demo", "--episodes", "0"], "--episodes"),
        (["demo", "--safety-level", "0"], "must lie strictly between 0 and 1"),
        (["nonsense", "--help"], "the verb must be one of check, check-env"),
        (["trian"], "got 'trian'; did you mean 'train'?"),
        (["train", "--dry-run", "--env", "PointGaol1"], "unknown environment 'PointGaol1'"),
        (["train", "--dry-run", "--env", ""], "unknown environment ''"),
        (["train", "--dry-run", "--preset", "quickstart", "--psi", "!hazrd"], "unknown atom 'hazrd'"),
        (["train", "--dry-run", "--spec", "P>=0.9 [ G<=30 !lava ]"], "unknown atom 'lava'"),
        (["train", "--env", "PointGaol1"], "unknown environment 'PointGaol1'"),
        (["train", "--dry-run", "--training.train-ratio", "1e308"], "train_ratio must be finite"),
        (["train", "--dry-run", "--training.train-ratio", "1e30"], "train_ratio must be at most"),
        (["play", "CartPole-v1"], "CartPole-v1 has no labels to show"),
        (
            ["foresight", "nowhere", "--traces", "1000000000"],
            "--traces must be a whole number from 1 to 100000, got 1000000000",
        ),
        (["train", "--preset", "quickstart", "--frames", "600"], "a prefill of 800 steps leaves nothing to learn in"),
        ([*QUICK, "--spec", "hazard | !hazard"], "Ψ = hazard | !hazard holds in every state"),
        ([*QUICK, "--spec", "hazard & !hazard"], "Ψ = hazard & !hazard fails in every state"),
        ([*QUICK, "--spec", "true"], "Ψ = true holds in every state: nothing would be unsafe"),
        ([*QUICK, "--shield.label-threshold", ".5", ".5", ".5"], "label_threshold has 3 entries for 2 atoms"),
        (
            [*QUICK, "--env", "tests.cli.test_cli:no_battery"],
            "cannot start an episode: RuntimeError in a reset: no battery",
        ),
        ([*QUICK, "--seed", "1", "--seed", "2"], "--seed is said to be 1 and 2: say it once"),
        ([*QUICK, "--frames", "9000", "--training.frames", "8000"], "--training.frames is said to be 9000 and 8000"),
        (["guarantee", "--traces=3", "--traces", "4"], "--traces is said to be 3 and 4: say it once"),
        (["eval", "nowhere", "--policy", "random", "--shield", "on"], "--policy random acts without a shield"),
        (
            [*QUICK, "--method", "copt", "--policy", "tests.cli.test_cli:idle"],
            "method copt takes no policy: guard does",
        ),
        ([*QUICK, "--method", "guard"], "method guard needs the policy that acts"),
        (["demo", "--safety-level", "1.5"], "--safety-level must lie strictly between 0 and 1, got 1.5"),
        (["demo", "--episodes", "1000000000"], "--episodes must be a whole number from 1 to 10000, got 1000000000"),
        (["demo", "--out", __file__], "--out must be a folder"),
        (["eval", "nowhere", "--record", f"{__file__}/x"], "--record must be a folder"),
        (["inspect", "recorded", "--audit", "."], "--audit must be a file, and . is a folder"),
        (["quickstart", "--frames", "0"], "frames must be at least 1, got 0"),
        (["quickstart", "--frames", "3000"], "a prefill of 800 steps leaves nothing to learn in"),
        (["record-episodes", "PointWorld", "--seed", "-1"], "seed must be a whole number of at least 0, got -1"),
        (["compare"], "name run folders, or folders of them"),
        (["compare", RESULTS, "--at", "1000000000"], "no run has 1,000,000,000 frames"),
        (["compare", RESULTS, "--spec", "!lava"], "violations cannot be counted by Ψ = !lava"),
        (["reproduce", "table1", "--methods", "--dry-run"], "--methods names none"),
        (
            ["reproduce", "table1", "--parallel", "0", "--dry-run"],
            "--parallel must be a whole number of at least 1, got 0",
        ),
        (["sweep", "table1", "--parallel", "0", "--dry-run"], "--parallel must be a whole number of at least 1, got 0"),
        (["sweep", os.devnull], "/dev/null declares nothing: it needs one of sweep, settings, grid, list, stop"),
        (["reproduce", "table1", "--seeds", "20000", "--dry-run"], "--seeds must be at least 1 and at most 1000"),
        (["reproduce", "table1", "--out", __file__, "--dry-run"], "--out must be a folder"),
        (["compare", ""], "compare is given an empty name"),
        (["inspect", "recorded", "--audit="], "--audit is empty"),
        (["inspect", "recorded", "--step", "3"], "--step is the step of a figure, and goes with --figure"),
        (
            ["report", "runs", "--out", "report.pdf"],
            "a report is html, md, png, csv or json, which --format says, and not pdf",
        ),
        (["train", "--method", "guard"], "method guard needs the policy that acts"),
        (["train", "--dry-run", "--policy", "nowhere:ppo"], "module 'nowhere' cannot be imported"),
        (["train", "--training.batch", "1000000000"], "a batch of 1000000000 sequences can"),
    ],
)
def test_mistakes_get_a_sentence_and_code_2(args, says, capsys):
    with pytest.raises(SystemExit) as stop:
        main(args)
    assert stop.value.code == 2
    told = capsys.readouterr()
    assert says in told.err
    assert "Traceback" not in told.err
    assert "Compiling" not in told.out + told.err


def test_what_is_no_plain_file_is_not_replaced_by_one(tmp_path, capsys):
    """`--out /dev/null` of an administrator would else leave a machine without it."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "target")
    for name in ("pipe", "link"):
        with pytest.raises(SystemExit) as stop:
            main(["report", RESULTS, "--out", str(tmp_path / name)])
        assert stop.value.code == 2
        assert f"{name} is a link, a device or a pipe" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "pipe"]
    assert (tmp_path / "pipe").is_fifo()


@pytest.mark.parametrize(
    "error",
    [
        MemoryError("Unable to allocate 14 TiB"),
        jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Unable to allocate 14 TiB"),
    ],
)
def test_too_little_memory_gets_a_sentence(error, monkeypatch, capsys):
    def fail(_):
        raise error

    monkeypatch.setattr(ambs.cli.check.Check, "run", fail)
    with pytest.raises(SystemExit) as stop:
        main(["check", "a"])
    assert stop.value.code == 70
    assert capsys.readouterr().err == f"ambs: there is not enough memory ({error})\n"


def test_a_device_that_is_not_there_gets_a_sentence(monkeypatch, capsys):
    def fail(*_):
        raise RuntimeError("Unable to initialize backend 'abacus'")

    monkeypatch.setattr(ambs.cli.check.Check, "run", fail)
    with pytest.raises(RuntimeError, match="abacus"):
        main(["check", "a"])  # Where JAX has its device, what failed is something else.
    monkeypatch.setenv("JAX_PLATFORMS", "abacus")
    monkeypatch.setattr(jax, "devices", fail)
    with pytest.raises(SystemExit) as stop:
        main(["check", "a"])
    assert stop.value.code == 70
    assert capsys.readouterr().err.startswith("ambs: JAX cannot compute on abacus here, as JAX_PLATFORMS has it")


def test_check_explains(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["check", "P>=0.9 [ G<=30 !hazard ]", "--atoms", "hazard"])
    assert stop.value.code == 0
    words = capsys.readouterr().out
    assert "with probability at least 0.9, now and in each of the next 30 steps: no hazard" in words
    assert "Δ = 0.1, n = 30, Ψ = !hazard" in words
    with pytest.raises(SystemExit):
        main(["check", "P<0.25 [ a U<=3 (b & !c) ]", "--json"])
    facts = json.loads(capsys.readouterr().out)
    assert facts["atoms"] == ["a", "b", "c"]
    assert facts["meaning"] == "with probability less than 0.25, (b and no c) comes within 3 steps, and until then a"


@pytest.mark.process
def test_check_in_a_process_of_its_own():
    done = run("check", "P>=0.9 [ G<=30 !hazrd ]", "--atoms", "hazard")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("ambs: unknown atom 'hazrd'")


@pytest.mark.process
def test_demo(tmp_path, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["demo", "--episodes", "3", "--out", str(tmp_path / "demo"), "--seed", "1"])
    assert stop.value.code == 0
    printed = capsys.readouterr().out
    result = json.loads((tmp_path / "demo" / "demo.json").read_text())
    assert str(tmp_path / "demo" / "demo.png") in printed.replace("\n", "")
    assert (tmp_path / "demo" / "demo.png").read_bytes().startswith(b"\x89PNG")
    assert result["shield_off"]["violating_steps"] > 20
    assert result["shield_on"]["violating_steps"] <= result["shield_off"]["violating_steps"] / 10
    assert 0 < result["shield_on"]["override_rate"]["mean"] < 0.9
    assert result["shield"]["rule"] == "sequential"


def undocumented(settings: type) -> Iterator[str]:
    """Fields, those of groups included, that no string follows: the text that `--help` shows."""
    (found,) = ast.parse(textwrap.dedent(inspect.getsource(settings))).body
    assert isinstance(found, ast.ClassDef)
    told = {
        one.target.id
        for one, after in zip(found.body, found.body[1:], strict=False)
        if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
    }
    for field in dataclasses.fields(settings):
        if isinstance(field.default_factory, type) and dataclasses.is_dataclass(field.default_factory):
            yield from undocumented(field.default_factory)
        elif field.name not in told:
            yield f"{settings.__name__}.{field.name}"


def test_every_flag_of_train_is_explained():
    assert list(undocumented(Train)) == []


@pytest.mark.process
def test_a_reader_who_has_gone_away_is_no_trouble():
    """`ambs … | head`: nothing is said about it, whether the verb prints or `--help` does."""
    for words in (["check", "!hazard"], ["--help"]):
        read, write = os.pipe()
        os.close(read)
        with os.fdopen(write, "w") as nobody:
            done = subprocess.run(
                [sys.executable, "-m", "ambs", *words],
                stdout=nobody,
                stderr=subprocess.PIPE,
                text=True,
                timeout=300,
                check=False,
            )
        assert (done.returncode, done.stderr) == (141, "")
