"""`grid`: a finite world with slippery floor, drawn as text, whose PCTL values are known exactly.

`#` wall, `H` hazard, `G` goal (ends the episode), `S` start, `.` floor.
"""

import functools
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key

from ambs.dynamics import Dynamics, Step
from ambs.envs.options import check_render_mode
from ambs.envs.scene import Scene, scene
from ambs.envs.snapshot import Snapshot, check_state, generator_from_array, generator_to_array
from ambs.errors import UserError
from ambs.spec.chain import Chain
from ambs.spec.formula import Atoms, Formula
from ambs.spec.parser import parse_formula

ATOMS = Atoms(("hazard", "goal"))
MOVES = np.array([(-1, 0), (0, 1), (1, 0), (0, -1), (0, 0)])
"""Up, right, down, left, stay."""

DEFAULT_MAP = """
S....
.H.H.
...H.
.H...
...HG
"""


@dataclass(frozen=True)
class Grid:
    """The world as tables, cells numbered row by row: `kernel` `[cells, actions, cells]`, `labels` `[cells, atoms]`."""

    map: str = DEFAULT_MAP
    slip: float = 0.1
    """Chance that a move (not a stay) goes astray to one of its two sides, each as likely."""
    episode_steps: int = 100

    def __post_init__(self) -> None:
        rows = self.map.split()
        if not rows or len({len(row) for row in rows}) != 1 or set("".join(rows)) - set("#HGS."):
            raise UserError("a grid map needs rows of equal length made of the characters # H G S .")
        if "S" not in self.map:
            raise UserError("a grid map needs at least one start S")
        if not 0 <= self.slip <= 1:
            raise UserError(f"slip must lie between 0 and 1, got {self.slip}")

    @functools.cached_property
    def cells(self) -> np.ndarray:
        """The map as characters `[rows, columns]`."""
        return np.array([list(row) for row in self.map.split()])

    @functools.cached_property
    def labels(self) -> np.ndarray:
        """`[cells, atoms]` bool."""
        flat = self.cells.ravel()
        return np.stack([flat == "H", flat == "G"], axis=-1)

    @functools.cached_property
    def starts(self) -> np.ndarray:
        """Numbers of the start cells."""
        return np.flatnonzero(self.cells.ravel() == "S")

    @functools.cached_property
    def kernel(self) -> np.ndarray:
        """Transition probabilities `[cells, actions, cells]`; goals and walls keep what is in them."""
        cells = self.cells
        height, width = cells.shape
        kernel = np.zeros((cells.size, len(MOVES), cells.size))
        for (row, column), mark in np.ndenumerate(cells):
            here = row * width + column
            for action in range(len(MOVES)):
                if mark in "G#":
                    kernel[here, action, here] = 1
                    continue
                for move, chance in self._outcomes(action):
                    r, c = np.add((row, column), MOVES[move])
                    free = 0 <= r < height and 0 <= c < width and cells[r, c] != "#"
                    kernel[here, action, r * width + c if free else here] += chance
        return kernel

    @functools.cached_property
    def cumulative(self) -> np.ndarray:
        """Chance of arriving in a cell or one of those before it, `[cells, actions, cells]`; the last one is 1."""
        cumulative = self.kernel.cumsum(axis=-1)
        return cumulative / cumulative[..., -1:]

    def _outcomes(self, action: int) -> list[tuple[int, float]]:
        if action == 4:
            return [(4, 1.0)]
        return [(action, 1 - self.slip), ((action + 1) % 4, self.slip / 2), ((action - 1) % 4, self.slip / 2)]

    def chain(self, policy: np.ndarray) -> Chain:
        """The transition system under a policy `[cells, actions]` of action probabilities."""
        return Chain(np.einsum("sa,sat->st", policy, self.kernel), self.labels, ATOMS)

    def dynamics(self) -> Dynamics:
        """The true model for a shield: (key, cell, action) -> Step."""
        log_kernel = jnp.log(jnp.asarray(self.kernel, jnp.float32))
        labels = jnp.asarray(self.labels)

        def step(key: Key[Array, ""], cell: Any, action: Any) -> Step:
            following = jax.random.categorical(key, log_kernel[cell, action]).astype(jnp.asarray(cell).dtype)
            return Step(following, labels[following][None], ~labels[following, 1])

        return step


class GridEnv(gym.Env[np.ndarray, np.int64]):
    """Gymnasium environment. Observation: the cell, one-hot `[cells]`. Actions: up, right, down, left, stay. Reward 1 at
    the goal, which ends the episode; −0.01 per step before."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 5}  # noqa: RUF012  (Gymnasium's own attribute)
    summary = "A slippery grid with hazards and a goal; its PCTL values are known exactly."

    fallback_action = np.array(4)
    """Stay, if all else fails."""
    action_names = ("up", "right", "down", "left", "stay")

    def __init__(self, grid: Grid | None = None, spec: str = "!hazard", render_mode: str | None = None) -> None:
        self.render_mode = check_render_mode(render_mode)
        self.grid = Grid() if grid is None else grid
        if not isinstance(self.grid, Grid):
            raise UserError(f"grid must be a Grid, got {grid!r}")
        self.atoms = ATOMS
        self.psi: Formula = parse_formula(spec, ATOMS)
        self.observation_space = gym.spaces.Box(0.0, 1.0, (self.grid.cells.size,), np.float32)
        self.action_space = gym.spaces.Discrete(len(MOVES))
        self.cell = int(self.grid.starts[0])
        self.steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        """To one of the starts."""
        super().reset(seed=seed, options=options)
        self.cell = int(self.np_random.choice(self.grid.starts))
        self.steps = 0
        return self._observe(), self._info()

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        """One move; terminates at the goal, truncates after `episode_steps`."""
        try:
            known = self.action_space.contains(np.int64(action)) and int(action) == action
        except (TypeError, ValueError):
            known = False
        if not known:
            raise UserError(f"an action of grid is a whole number from 0 to {len(MOVES) - 1}, got {action}")
        self.cell = int(self.grid.cumulative[self.cell, int(action)].searchsorted(self.np_random.random(), "right"))
        self.steps += 1
        terminated = bool(self.grid.labels[self.cell, 1])
        reward = 1.0 if terminated else -0.01
        return self._observe(), reward, terminated, self.steps >= self.grid.episode_steps, self._info()

    def get_state(self) -> Snapshot:
        """All that the future depends on, random numbers included, as arrays."""
        return {
            "cell": np.array(self.cell),
            "steps": np.array(self.steps),
            "rng": generator_to_array(self.np_random),
        }

    def set_state(self, snapshot: Snapshot) -> None:
        """Continue from a snapshot, bit by bit as the original would."""
        check_state("Grid", snapshot, ("cell", "steps", "rng"))
        self.cell, self.steps = int(snapshot["cell"]), int(snapshot["steps"])
        self.np_random = generator_from_array(snapshot["rng"])

    def render(self) -> Any:
        """The map, 32 pixels a cell, uint8: hazards blue, goal green, walls grey, the robot's cell red."""
        if self.render_mode is None:
            return None
        colours = {
            "H": (157, 184, 232),
            "G": (143, 207, 133),
            "#": (90, 90, 90),
            "S": (230, 230, 230),
            ".": (245, 245, 245),
        }
        picture = np.array([[colours[mark] for mark in row] for row in self.grid.cells], np.uint8)
        picture.reshape(-1, 3)[self.cell] = (214, 40, 57)
        return picture.repeat(32, axis=0).repeat(32, axis=1)

    def map_scene(self) -> Scene:
        """The map, one unit a cell, row 0 on top."""
        height, width = self.grid.cells.shape
        names = {"H": "hazard", "G": "goal", "#": "wall"}
        marks = np.ndenumerate(self.grid.cells)
        things = [(names[str(mark)], self._place(*at), 0.5) for at, mark in marks if str(mark) in names]
        return scene(self._place(*divmod(self.cell, width)), things, max(height, width) / 2, square=True)

    def map_imagined(self, now: Scene, observation: Any) -> Scene:
        """The robot in the cell that the observation gives most weight."""
        cell = divmod(int(np.argmax(observation)), self.grid.cells.shape[1])
        return now._replace(robot=np.array([*self._place(*cell), np.nan], np.float32))

    def _place(self, row: int, column: int) -> tuple[float, float]:
        height, width = self.grid.cells.shape
        return column - (width - 1) / 2, (height - 1) / 2 - row

    def _observe(self) -> np.ndarray:
        observation = np.zeros(self.grid.cells.size, np.float32)
        observation[self.cell] = 1.0
        return observation

    def _info(self) -> dict[str, Any]:
        labels = self.grid.labels[self.cell].copy()
        return {"labels": labels, "cost": float(not self.psi.holds(labels, self.atoms))}
