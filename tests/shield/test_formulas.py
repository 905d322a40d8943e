"""Any bounded formula: what the shield decides on `grid` against exact PCTL values, whose chains Storm has judged."""

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
    "(hazard -> goal) U<=5 goal", "G<=1 !hazard",
)  # fmt: skip
SOME = PATHS[1::6]
"""Tried at once; all of them are with `-m slow`."""
LEVEL, ERROR, TRACES = 0.3, 0.1, 1200
"""Δ, ε and m: the count accepts at 1 − Δ + ε or more, and 1200 futures tell a truth from that at a distance of .03."""


def exact(grid: Grid, path: Path) -> np.ndarray:
    """P(φ | s, a) `[cells, actions]`: the state settles it, or one step of the kernel and then the chain does."""
    chain = grid.chain(np.tile(ODDS, (grid.cells.size, 1)))
    now = path.on_traces(grid.labels[:, None], ATOMS)
    later = chain.probability(path.afterwards())
    return np.where((now == 2)[:, None], grid.kernel @ later, now[:, None])


def decisions(grid: Grid, text: str, config: ShieldConfig):
    problem = ShieldProblem(
        rollout(grid.dynamics(), config.steps),
        lambda key, _cell: jax.random.categorical(key, jnp.log(jnp.asarray(ODDS))),
        lambda _key, _cell: jnp.array(4),
        parse_formula("!hazard"),
        ATOMS,
        config,
    )
    size = grid.cells.size
    cells, actions = (part.ravel() for part in np.meshgrid(np.arange(size), np.arange(5), indexing="ij"))
    decide = jax.jit(lambda *given: shield(*given[:3], problem, given[3]), compiler_options=SWIFT)
    found = decide(stream(0, text), jnp.asarray(cells), jnp.asarray(actions), jnp.asarray(grid.labels[cells]))
    return jax.device_get(found), exact(grid, parse_path(text, ATOMS))[cells, actions]


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
