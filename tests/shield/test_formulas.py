"""Any bounded formula: what the shield decides on `grid` against exact PCTL values, whose chains Storm has judged."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ambs.envs.worlds.grid import ATOMS, Grid
from ambs.errors import UserError
from ambs.shield import ShieldConfig, ShieldProblem, rollout, shield
from ambs.spec import parse_formula
from ambs.spec.parser import parse_path
from ambs.spec.pctl import Path
from ambs.streams import stream
from tests.tiny import SWIFT

MAPS = (
    "S......\n.H..H..\n...#...\n.HH..#.\n.......\n.#..H.G",
    "S..H....\n..#...H.\n.H...#..\n....H...\n.G..#..S\n...H..G.",
)
ODDS = np.array([0.1, 0.4, 0.3, 0.1, 0.1])
PATHS = (
    "X !hazard", "X goal", "X (hazard | goal)", "G<=2 !hazard", "G<=5 !hazard", "G<=8 (hazard -> goal)", "G<=4 !goal",
    "G<=6 (!hazard & !goal)", "F<=3 goal", "F<=6 goal", "F<=9 (goal | hazard)", "F<=2 hazard", "F<=5 !hazard",
    "!hazard U<=3 goal", "!hazard U<=6 goal", "!hazard U<=9 goal", "!goal U<=4 hazard", "true U<=5 goal",
    "(!hazard | goal) U<=7 goal", "hazard U<=3 !hazard", "!hazard U<=4 (hazard | goal)", "!goal U<=6 (hazard & !goal)",
    "X true", "G<=3 true", "F<=4 false", "!hazard U<=5 true", "G<=7 (goal <-> goal)", "F<=8 (goal & !hazard)",
    "(hazard -> goal) U<=5 goal", "G<=1 !hazard", "X !goal", "G<=10 !hazard", "F<=12 goal", "!goal U<=8 hazard",
    "!hazard U<=12 goal",
)  # fmt: skip
"""35, five of which are constant."""
SOME = ("X goal", "G<=6 (!hazard & !goal)", "F<=6 goal", "!hazard U<=6 goal", "hazard U<=3 !hazard")
"""Tried at once; all of them are with `-m slow`."""
LEVEL, ERROR, TRACES = 0.3, 0.1, 1200
"""Δ, ε and m: the count accepts at 1 − Δ + ε or more, and 1200 futures tell a truth from that at a distance of .03."""


def exact(grid: Grid, path: Path, odds: np.ndarray) -> np.ndarray:
    """P(φ | s, a) `[cells, actions]`: the state settles it, or one step of the kernel and then the chain of this policy does."""
    chain = grid.chain(odds)
    now = path.on_traces(grid.labels[:, None], ATOMS)
    later = chain.probability(path.afterwards())
    return np.where((now == 2)[:, None], grid.kernel @ later, now[:, None])


def decisions(grid: Grid, text: str, config: ShieldConfig, backup: np.ndarray | None = None):
    """What the shield says in all cells of all actions, and the exact values of what it asks; `backup`: its move in each cell."""
    size = grid.cells.size
    moves = jnp.full(size, 4) if backup is None else jnp.asarray(backup)
    problem = ShieldProblem(
        rollout(grid.dynamics(), config.steps),
        lambda key, _cell: jax.random.categorical(key, jnp.log(jnp.asarray(ODDS))),
        lambda _key, cell: moves[cell],
        parse_formula("!hazard"),
        ATOMS,
        config,
    )
    odds = np.eye(5)[np.asarray(moves)] if config.kind == "recovery" else np.tile(ODDS, (size, 1))
    cells, actions = (part.ravel() for part in np.meshgrid(np.arange(size), np.arange(5), indexing="ij"))
    decide = jax.jit(lambda *given: shield(*given[:3], problem, given[3]), compiler_options=SWIFT)
    found = decide(stream(0, text), jnp.asarray(cells), jnp.asarray(actions), jnp.asarray(grid.labels[cells]))
    return jax.device_get(found), exact(grid, parse_path(text, ATOMS), odds)[cells, actions]


@pytest.mark.parametrize(
    "text", [text if text in SOME else pytest.param(text, marks=pytest.mark.slow) for text in PATHS]
)
def test_decisions_are_those_of_the_exact_values(text):
    """Wherever the exact value is further than ε from the threshold: in all state–action pairs of a larger map."""
    path = parse_path(text, ATOMS)
    grid = Grid(map=MAPS[PATHS.index(text) % 2], slip=0.2)
    config = ShieldConfig(
        safety_level=LEVEL, approximation_error=ERROR, horizon=path.bound(), path=text, rule="fixed", traces=TRACES
    )
    found, truth = decisions(grid, text, config)
    clear = np.abs(truth - (1 - LEVEL)) > ERROR + 1e-9
    right = ~found.overridden == (truth >= 1 - LEVEL)
    assert clear.sum() > 100
    assert right[clear].mean() >= 0.95
    error = np.abs(found.p_safe - truth) / np.sqrt(truth * (1 - truth) / TRACES + 1e-6)
    assert error.max() < 5


def ways_out(grid: Grid, steps: int) -> dict[str, np.ndarray]:
    """Backup policies on a grid, a move for each cell `[cells]`: the likeliest to keep out of hazards for so many steps, and the
    least likely."""
    found, safe = {}, ~grid.labels[:, 0]
    for name, sign in {"sound": 1, "broken": -1}.items():
        kept = safe.astype(float)
        for _ in range(steps):
            chances = grid.kernel @ kept
            found[name] = (sign * chances).argmax(axis=1)
            kept = safe * chances[np.arange(safe.size), found[name]]
    return found


def test_a_way_back_is_worth_what_the_backup_policy_is_worth():
    """`recovery` in all state–action pairs of a larger map: around a backup policy that knows the way out it overrides a fraction
    of what `ambs` does, around one that is broken on purpose more; each as its exact values say."""
    grid, steps = Grid(map=MAPS[0], slip=0.2), 4
    free, ways = np.repeat(~grid.labels[:, 0], 5), ways_out(grid, steps)
    config = ShieldConfig(safety_level=LEVEL, approximation_error=ERROR, horizon=steps, rule="fixed", traces=TRACES)
    overridden = {}
    for kind, backup in {"ambs": None, "recovery": "sound", "broken": "broken"}.items():
        asked = config if backup is None else dataclasses.replace(config, kind="recovery")
        found, truth = decisions(grid, f"G<={steps} !hazard", asked, ways.get(backup))
        clear = np.abs(truth - (1 - LEVEL)) > ERROR + 1e-9
        assert (~found.overridden == (truth >= 1 - LEVEL))[clear].mean() >= 0.95, kind
        overridden[kind] = found.overridden[free].mean()
    assert overridden["recovery"] < overridden["ambs"] / 2
    assert overridden["broken"] > overridden["ambs"] * 1.2


def test_what_cannot_be_judged_is_refused():
    for text, says in {
        "F goal": "bounded",
        "G<=3 P>=0.5 [ X goal ]": "one future",
        "G<=3 !gaol": "did you mean",
    }.items():
        with pytest.raises(UserError, match=says):
            decisions(Grid(), text, ShieldConfig(horizon=3, path=text))
    with pytest.raises(UserError, match="know Ψ alone"):
        ShieldConfig(horizon=3, path="F<=3 goal", critics="max")
