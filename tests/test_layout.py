"""The order of the tree: a module imports only what stands above its own package, so that nobody walks in circles."""

import ast
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "ambs"
TREE = """
__init__
errors streams statistics forks
spec
dynamics data
config
storage
envs
nn world_model agent
shield
acting
training
recording foresight
report inspector
apps
sweep reproduce
cli
__main__
"""
"""From what everything may import to what nothing does; of what stands on one line, each may import what is left of it."""
ORDER = TREE.split()

EXCEPTIONS = {
    (
        "config",
        "shield.config",
    ): "a run's settings hold the shield's, which are declared beside the rules that read them",
}
READERS = {
    "report": {"__init__", "errors", "statistics", "spec", "storage", "config"},
    "inspector": {"__init__", "errors", "statistics", "spec", "storage", "config", "report", "recording.schema"},
    "recording.schema": {"__init__", "errors", "statistics", "spec", "storage"},
}
"""What reads files only: no world, no model and no agent is needed to look at what they did."""
NUMERIC = {"jax", "equinox", "optax", "mujoco"}
"""Packages that take seconds to load, or a GPU."""


def modules() -> Iterator[tuple[str, ast.Module]]:
    """Every module by its name without `ambs.`, and its syntax."""
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)
        yield name, ast.parse(path.read_text(encoding="utf-8"))


def imported(tree: ast.Module) -> Iterator[str]:
    """Full names of all that a module imports, be it inside a function or for types only."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def ours(tree: ast.Module) -> Iterator[str]:
    """What a module imports of this package, without `ambs.`; of the package itself, `__init__`."""
    for name in imported(tree):
        first, _, rest = name.partition(".")
        if first == "ambs":
            yield rest if rest.partition(".")[0] in ORDER else "__init__"


def misplaced(name: str, tree: ast.Module) -> set[tuple[str, str]]:
    """Pairs (own package, import) that go against the order."""
    own = name.partition(".")[0]
    return {
        (own, other)
        for other in ours(tree)
        if other.partition(".")[0] != own and ORDER.index(other.partition(".")[0]) >= ORDER.index(own)
    }


def excuses(exception: tuple[str, str], pair: tuple[str, str]) -> bool:
    (own, what), (package, other) = exception, pair
    return own == package and f"{other}.".startswith(f"{what}.")


def test_everything_has_its_place():
    there = {path.stem for path in SOURCE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert there == set(ORDER)


def test_a_module_imports_only_what_stands_above_it():
    # The package itself names what is public, for type checkers; it loads none of it.
    found = {(name, pair) for name, tree in modules() if name != "__init__" for pair in misplaced(name, tree)}
    broken = sorted(
        f"{name} imports {pair[1]}" for name, pair in found if not any(excuses(e, pair) for e in EXCEPTIONS)
    )
    assert not broken
    idle = [exception for exception in EXCEPTIONS if not any(excuses(exception, pair) for _, pair in found)]
    assert not idle, "nobody needs these exceptions any more"


def test_the_order_can_be_broken():
    """Every way of importing is seen: at the top, in a function, as a module, for types."""
    for text in ("from ambs.cli.main import main", "def f():\n    import ambs.cli.main", "from ambs import cli"):
        assert misplaced("shield.rules", ast.parse(text)), text
    assert not misplaced(
        "cli.main", ast.parse("from ambs.shield import rules\nfrom ambs import __version__\nimport ambs")
    )


def test_reports_read_files_only():
    for name, tree in modules():
        for reader in (reader for reader in READERS if f"{name}.".startswith(f"{reader}.")):
            allowed = READERS[reader] | {reader}
            others = [other for other in ours(tree) if not any(f"{other}.".startswith(f"{one}.") for one in allowed)]
            assert not others, name
            assert not {other.partition(".")[0] for other in imported(tree)} & NUMERIC, name
