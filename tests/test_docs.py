"""What the documentation shows is run as it stands; what is tagged long is parsed, and dry-run where a verb can."""

import glob
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from ambs.cli import main as cli
from tests.report.synthetic import make_run

ROOT = Path(__file__).parents[1]
PAGES = sorted((ROOT / "docs").glob("*.md"))


def commands(page: Path, *, long: bool) -> list[str]:
    """Lines of shell blocks: ```sh, or ``` { .sh .long } for what takes minutes."""
    fence = r"``` \{ \.sh \.long \}" if long else "```sh"
    found = re.findall(rf"^{fence}\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
    return [line for block in found for line in block.splitlines() if line and not line.startswith("#")]


def ambs_words(line: str) -> list[str]:
    """The arguments of `ambs`, patterns filled in as a shell would."""
    first, *words = shlex.split(line, comments=True)
    assert first in ("ambs", ".venv/bin/ambs"), f"only ambs can be run from the documentation, not {line}"
    return [part for word in words for part in (sorted(glob.glob(word)) or [word])]


def example() -> str:
    (code,) = re.findall(
        r"^```python\n(.*?)^```", (ROOT / "docs" / "own-environment.md").read_text(), re.DOTALL | re.MULTILINE
    )
    return code


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder as a reader might have it: a few runs, and the environment that the documentation writes."""
    root = tmp_path_factory.mktemp("reader")
    for seed in (0, 1):
        make_run(root / "runs", seed=seed)
        make_run(root / "runs", seed=seed, method="lag")
    (root / "corridor.py").write_text(example())
    (root / "tests").symlink_to(ROOT / "tests")
    return root


@pytest.mark.parametrize("page", [page for page in PAGES if commands(page, long=False)], ids=lambda page: page.name)
def test_commands_run(page, place, monkeypatch, capsys):
    monkeypatch.chdir(place)
    for line in commands(page, long=False):
        with pytest.raises(SystemExit) as stop:
            cli.main(ambs_words(line))
        assert stop.value.code == 0, f"{line}: {capsys.readouterr()}"


@pytest.mark.parametrize("page", [page for page in PAGES if commands(page, long=True)], ids=lambda page: page.name)
def test_long_commands_are_understood(page, place, monkeypatch, capsys):
    monkeypatch.chdir(place)
    for line in commands(page, long=True):
        if line.startswith("make "):
            assert re.search(rf"^{shlex.split(line)[1]}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
        elif line.startswith("python benchmarks/"):
            _, script, *words = shlex.split(line, comments=True)
            told = subprocess.run([sys.executable, ROOT / script, "--help"], capture_output=True, text=True, check=True)
            assert all(f"{word} " in told.stdout for word in words if word.startswith("--")), line
        elif line.startswith("ambs train"):
            with pytest.raises(SystemExit) as stop:
                cli.main([*ambs_words(line), "--dry-run"])
            assert stop.value.code == 0, f"{line}: {capsys.readouterr()}"
            assert '"horizon"' in capsys.readouterr().out
        else:
            assert callable(cli._parse(ambs_words(line)).run)


def test_the_example_runs_alone(tmp_path):
    (tmp_path / "corridor.py").write_text(example())
    subprocess.run([sys.executable, "corridor.py"], cwd=tmp_path, check=True)


def test_pages_link_to_pages_that_exist():
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:]+\.(?:md|png))\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


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


def test_site_builds_and_loads_nothing_from_elsewhere(site):
    for page in PAGES:
        text = (site / page.with_suffix(".html").name).read_text()
        loaded = re.findall(r'<(?:script|img|iframe)[^>]*\ssrc="([^"]+)"', text)
        loaded += re.findall(r'<link[^>]*rel="(?:stylesheet|preload|icon|preconnect)"[^>]*href="([^"]+)"', text)
        loaded += re.findall(r'<link[^>]*href="([^"]+)"[^>]*rel="(?:stylesheet|preload|icon|preconnect)"', text)
        assert not [address for address in loaded if re.match(r"(https?:)?//", address)], page.name
    reference = (site / "api.html").read_text()
    for name in ("parse_formula", "ShieldConfig", "traces_needed", "summarise"):
        assert f".{name}" in reference


def test_pages_not_written_yet_are_left_out(tmp_path):
    sys.path.insert(0, str(ROOT / "tools"))
    try:
        from docs_nav import present
    finally:
        sys.path.pop(0)
    (tmp_path / "a.md").write_text("")
    nav = [{"A": "a.md"}, {"B": [{"C": "c.md"}]}, {"D": [{"E": "e.md"}, {"F": "a.md"}]}]
    assert present(nav, tmp_path) == [{"A": "a.md"}, {"D": [{"F": "a.md"}]}]
