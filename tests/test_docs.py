"""What the documentation shows is run as it stands; what is tagged long is parsed, and dry-run where a verb can."""

import glob
import importlib.util
import json
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from ambs.cli import main as cli
from tests.inspector.recordings import make_recording
from tests.report.synthetic import make_run
from tests.tiny import tiny_sizes

ROOT = Path(__file__).parents[1]
PAGES = sorted((ROOT / "docs").glob("*.md"))
SHOWN = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *PAGES]


def commands(page: Path, *, long: bool) -> list[str]:
    """Lines of shell blocks: ```sh, or ``` { .sh .long } for what takes minutes."""
    fence = r"``` \{ \.sh \.long \}" if long else "```sh"
    found = re.findall(rf"^{fence}\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
    return [line for block in found for line in block.splitlines() if line and not line.startswith("#")]


def short(page: Path) -> bool:
    return bool(commands(page, long=False))


def is_long(page: Path) -> bool:
    return bool(commands(page, long=True))


def ambs_words(line: str) -> list[str]:
    """The arguments of `ambs`, patterns filled in as a shell would."""
    first, *words = shlex.split(line, comments=True)
    assert first == "ambs", f"only ambs can be run from the documentation, not {line}"
    return [part for word in words for part in (sorted(glob.glob(word)) or [word])]


OWN = ROOT / "docs" / "own-environment.md"


def examples() -> dict[str, str]:
    """The modules that docs/own-environment.md writes, by the name in their first line."""
    found = re.findall(r"^```python\n# (\w+\.py)\n(.*?)^```", OWN.read_text(), re.DOTALL | re.MULTILINE)
    assert [name for name, _ in found] == ["cartpole.py", "cheetah.py", "corridor.py"]
    return dict(found)


def extensions() -> list[tuple[str, str]]:
    """Headings of docs/extending.md, each with its example."""
    text = (ROOT / "docs" / "extending.md").read_text()
    return re.findall(r"^## ([^\n]+)$[^#]*?^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder as a reader might have it: a few runs, and the environment that the documentation writes."""
    root = tmp_path_factory.mktemp("reader")
    for seed in (0, 1):
        for method in ("copt", "lag"):
            make_run(root / "runs", seed=seed, method=method, labels={"": 490, "hazard": 10})
    make_recording(root / "recorded", steps=30)
    for name, code in examples().items():
        (root / name).write_text(code)
    if importlib.util.find_spec("imageio") is None:  # Gymnasium wants it beside MuJoCo, for films alone.
        (root / "imageio.py").write_text("")
    for name in ("tests", "results", "examples"):
        (root / name).symlink_to(ROOT / name)
    return root


@pytest.mark.process
@pytest.mark.parametrize("page", [*filter(short, SHOWN)], ids=lambda page: page.name)
def test_commands_run(page, place, monkeypatch, capsys):
    monkeypatch.chdir(place)
    for line in commands(page, long=False):
        words = ambs_words(line)
        with pytest.raises(SystemExit) as stop:
            cli.main(words)
        # What doctor thinks of this machine is not the documentation's fault.
        assert stop.value.code in ((0, 1) if words[0] == "doctor" else (0,)), f"{line}: {capsys.readouterr()}"


@pytest.mark.process
@pytest.mark.parametrize("page", [*filter(is_long, SHOWN)], ids=lambda page: page.name)
def test_long_commands_are_understood(page, place, monkeypatch, capsys):
    """Dry-run where a verb can; others are tried in full by the tests of their own verb, and here their options are."""
    monkeypatch.chdir(place)
    for line in commands(page, long=True):
        first, second, *words = shlex.split(line, comments=True)
        if first == "make":
            subprocess.run(["make", "--dry-run", second], cwd=ROOT, check=True, capture_output=True)
        elif first == "python":
            run_help(second, words)
        elif second in ("train", "reproduce"):
            with pytest.raises(SystemExit) as stop:
                cli.main([*ambs_words(line), "--dry-run"])
            assert stop.value.code == 0, f"{line}: {capsys.readouterr()}"
            assert '"horizon"' in capsys.readouterr().out or second == "reproduce"
        else:
            assert callable(cli._parse(ambs_words(line)).run)


def run_help(script: str, words: list[str]) -> None:
    """A script knows the options that it is shown with; a module is there."""
    if script == "-m":
        assert importlib.util.find_spec(words[0]) is not None
        return
    told = subprocess.run([sys.executable, ROOT / script, "--help"], capture_output=True, text=True, check=True)
    assert all(re.search(rf"{word}\b", told.stdout) for word in words if word.startswith("--")), (script, words)


def test_no_command_escapes_the_tests():
    """Blocks that begin with a command are tagged, and what is said in passing is understood as well."""
    for page in SHOWN:
        text = page.read_text()
        for block in re.findall(r"^```\n(.*?)^```", text.replace("```\n\n", "```\x00\n\n"), re.DOTALL | re.MULTILINE):
            assert not re.match(r"(\.venv/bin/)?(ambs|make|python) ", block), f"{page.name}: {block}"
        for line in re.findall(r"`ambs ([a-z-]+ [^`\n]*)`", text):
            words = [word for word in shlex.split(line) if not word.startswith("[")]
            if words[0] != "train" and "--help" not in words:
                assert callable(cli._parse(words).run), f"{page.name}: {line}"


@pytest.mark.process
def test_the_example_runs_alone(tmp_path):
    (tmp_path / "corridor.py").write_text(examples()["corridor.py"])
    subprocess.run([sys.executable, "corridor.py"], cwd=tmp_path, check=True)


SHORT = {
    "frames": 24,
    "envs": 1,
    "action_repeat": 1,
    "batch": 2,
    "length": 4,
    "train_ratio": 8.0,
    "updates_per_call": 1,
}
"""A training of a few steps."""


@pytest.mark.learns
@pytest.mark.process
@pytest.mark.parametrize(("line", "prefill"), [*zip(commands(OWN, long=True), (12, 24, 24), strict=True)])
def test_your_own_environment_trains_as_it_is_shown(line, prefill, place, tmp_path, monkeypatch, capsys):
    """In full, with few steps: the first learns as well, the others play at random, so that less is compiled."""
    monkeypatch.chdir(place)
    changes = {"training": {**SHORT, "prefill": prefill}, "agent": {"imagination": 2, "imagine_from": 4}}
    (tmp_path / "short.json").write_text(json.dumps(changes))
    with tiny_sizes(), pytest.raises(SystemExit) as stop:
        cli.main([*ambs_words(line), "--config", str(tmp_path / "short.json"), "--out", str(tmp_path)])
    told = capsys.readouterr()
    assert stop.value.code == 0, told
    assert ("begins new episodes" in told.out) == ("cartpole" in line)
    (status,) = tmp_path.glob("*/status.json")
    found = json.loads(status.read_text())
    assert found["state"] == "finished"
    assert found["frames"] == 24
    assert (found["updates"] > 0) == (prefill < 24)


@pytest.fixture
def tables(monkeypatch):
    """What an example adds to the tables is gone after it."""
    import gymnasium

    from ambs.agent import penalties
    from ambs.config import methods
    from ambs.envs.safety_gym import objects, tasks
    from ambs.shield import config, rules
    from ambs.world_model import heads

    places = (penalties.PENALTIES, methods.METHODS, config.RULES, rules.TABLES, heads.HEADS, tasks.TASKS, objects.KINDS)
    before = [(table, dict(table)) for table in (*places, gymnasium.registry)]
    yield
    for table, rows in before:
        table.clear()
        table.update(rows)


@pytest.mark.learns
@pytest.mark.usefixtures("tables")
@pytest.mark.parametrize(("heading", "code"), extensions(), ids=lambda text: text.splitlines()[0])
def test_extensions_work_as_they_are_shown(heading, code):
    exec(compile(code, f"docs/extending.md, {heading}", "exec"), {})


def test_files_that_extensions_touch_exist():
    """The table of files: two for a penalty and for a task, three for the rest, and all of them there."""
    rows = re.findall(r"^\| \[.*?\|(.*)\|$", (ROOT / "docs" / "extending.md").read_text(), re.MULTILINE)
    named = [re.findall(r"`(src/[\w/.-]+)`", row) for row in rows]
    assert [len(files) for files in named] == [2, 3, 3, 2, 1]
    assert all((ROOT / file).exists() for files in named for file in files)


def test_pages_link_to_pages_that_exist():
    for page in SHOWN:
        for target in re.findall(r"\]\(([^)#:]+\.(?:md|png|json))\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_files_that_contributors_are_sent_to_exist():
    named = re.findall(r"`((?:src|tests|docs)/[\w/.]+)`", (ROOT / "CONTRIBUTING.md").read_text())
    assert len(named) > 10
    for name in named:
        assert (ROOT / name).exists(), name


def test_the_citation_is_of_this_version_and_its_authors():
    told = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert [told["version"], told["license"]] == [project["version"], project["license"]]
    assert told["authors"] == project["authors"]
    (paper,) = told["references"]
    assert [author["family-names"] for author in paper["authors"]] == ["Goodall", "Belardinelli"]
    assert paper["title"] in " ".join((ROOT / "src/ambs/report/paper.py").read_text().split())


def test_every_page_is_in_the_navigation_and_every_picture_is_reproducible():
    navigation = (ROOT / "mkdocs.yml").read_text()
    assert {page.name for page in PAGES} == set(re.findall(r": ([a-z-]+\.md)$", navigation, re.MULTILINE))
    told = (ROOT / "docs" / "reproduce.md").read_text()
    for picture in (ROOT / "docs").glob("*.png"):
        assert f"docs/{picture.name}" in told
    for folder in (path for path in (ROOT / "results").iterdir() if path.is_dir()):
        assert f"results/{folder.name}/" in told


def test_coverage_table_is_the_measured_one():
    from ambs.report.coverage import figures

    measured = figures()["coverage"]
    page = (ROOT / "docs" / "reports.md").read_text()
    for size in ("2", "3", "5", "10", "20", "50"):
        cells = [f"{measured[kind][what][size]:.1%}" for kind in ("mean", "iqm") for what in ("normal", "log-normal")]
        assert f"| {size} | {' | '.join(cells)} |" in page


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    out = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return out


@pytest.mark.process
def test_site_builds_and_loads_nothing_from_elsewhere(site):
    for page in PAGES:
        text = (site / page.with_suffix(".html").name).read_text()
        loaded = re.findall(r'<(?:script|img|iframe)[^>]*\ssrc="([^"]+)"', text)
        loaded += re.findall(r'<link[^>]*rel="(?:stylesheet|preload|icon|preconnect)"[^>]*href="([^"]+)"', text)
        loaded += re.findall(r'<link[^>]*href="([^"]+)"[^>]*rel="(?:stylesheet|preload|icon|preconnect)"', text)
        assert not [address for address in loaded if re.match(r"(https?:)?//", address)], page.name
        pictures = [site / address for address in loaded if address.endswith(".png")]
        assert not [path for path in pictures if not path.resolve().is_relative_to(site) or not path.exists()]
        assert len(pictures) >= len(re.findall(r"!\[", page.read_text()))
    reference = (site / "api.html").read_text()
    for name in ("parse_formula", "ShieldConfig", "traces_needed", "summarise"):
        assert f".{name}" in reference
