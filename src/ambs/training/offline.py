"""Learning a shield from logged episodes alone: no simulator, and no reward needed.

Everything goes as in a run around a policy that is given, save that what was logged happens whatever is decided. Most of the logs
are read in before anything is learned; the updates come with the rest of them.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ambs.acting.worlds import GIVEN, Make
from ambs.config import Config
from ambs.config.checks import folder, short, whole
from ambs.config.resolve import changed, resolve
from ambs.envs.vector.logged import LoggedVectorEnv
from ambs.envs.vector.vector import LabelledVectorEnv
from ambs.errors import UserError
from ambs.shield.rules import Decision
from ambs.spec.formula import Atoms, Formula
from ambs.spec.parser import parse_formula
from ambs.storage.episodes import Episode, read_episodes
from ambs.training.asking import Life
from ambs.training.session import Session, begin
from ambs.training.trainer import Trainer

UPDATES = 6000
"""Of the model and of all that is learned in it, unless told otherwise."""
READ_FIRST = 0.8
"""Share of the logs that is read in before anything is learned."""
ROWS = 100
"""Rows of metrics in all."""
TWICE = 0.05
"""Share of the logs that may be read in twice, for the sake of more environments."""
SELDOM = 0.01
"""Share of steps in which something else than the proposal was done, below which that is as good as never."""


def fit(
    data: Sequence[Path | str],
    *,
    spec: str | None = None,
    updates: int = UPDATES,
    env: str | None = None,
    out: Path | str = "runs",
    preset: str = "guard",
    seed: int = 0,
    changes: dict[str, Any] | None = None,
    **hooks: Any,
) -> Session:
    """A run that learns a shield from these files (`ambs.storage.episodes`), ready to `run`.

    `spec` is the property to keep, such as "P>=0.9 [ G<=20 !hazard ]", over the atoms of the logs; None: what the files call
    safe, at the preset's level and horizon. `env` names the environment in the run folder, where the files do not. `changes` are
    groups of settings by name. `hooks`: `command`, `observers` and `stop`, as for any run.
    """
    updates, place = whole("updates", updates, 1), folder("out", out)
    episodes = list(read_episodes(_files(data)))
    if not episodes:
        raise UserError("there are no files to learn from")
    if spec is None and not episodes[0].spec:
        raise UserError("the files do not say what is safe: say so (--spec, as in 'P>=0.9 [ G<=20 !hazard ]')")
    named = env or _only(one.env for one in episodes) or GIVEN
    groups = {"obs": _seen(episodes[0]), **_groups(changes), "env": named, "seed": seed}
    config = resolve(preset, method="guard", spec=spec or episodes[0].spec, changes=groups)
    psi = parse_formula(config.psi or episodes[0].spec, Atoms(episodes[0].atoms))
    if not _violating(episodes, psi).any():
        raise UserError(f"no state in these files violates {psi}: what leads to one cannot be learned from them")
    worlds = _dealt(episodes, config.training.envs, psi)
    return begin(Offline(_paced(config, worlds, updates), worlds), place, **hooks)


class Offline(Trainer):
    """A run whose worlds are logs."""

    def __init__(self, config: Config, worlds: LoggedVectorEnv) -> None:
        self.logs = worlds
        super().__init__(config, policy=_Logged(worlds))

    def _worlds(self, make: Make | None) -> LabelledVectorEnv:
        del make
        return self.logs

    def _chosen(self, playing: bool, shielding: bool) -> Life[tuple[np.ndarray, Decision | None]]:
        """What was executed."""
        del shielding
        if playing:
            yield from self._learn_what_is_due()
        return self.interface.from_env(self.logs.executed), None

    @property
    def caveat(self) -> str:
        """Nothing: there is no world to be saved."""
        return ""

    @property
    def finished(self) -> bool:
        """Whether every row of the logs was read in."""
        return self.turns >= self.logs.rows


class _Logged:
    """The policy of the logs: proposes what it proposed."""

    def __init__(self, worlds: LoggedVectorEnv) -> None:
        self.worlds = worlds

    def predict(self, observation: Any) -> np.ndarray:
        """`[n, …]`."""
        del observation
        return self.worlds.proposed


def limits(episodes: Sequence[Episode], psi: Formula) -> list[str]:
    """What a shield that is learned from these logs can and cannot know, in sentences."""
    steps = sum(one.steps for one in episodes)
    violating = _violating(episodes, psi)
    names = sorted({one.policy for one in episodes} - {""})
    of = f" of {', '.join(names)}" if names else ""
    told = [
        f"It knows {len(episodes)} episodes{of}, {steps:,} steps; {int(violating.sum())} states in them violate {psi}."
    ]
    other = sum(_differ(one) for one in episodes) / steps
    if other < SELDOM:
        told.append(
            "Nothing but what the policy proposes was ever executed: what other actions lead to, the backup policy's above all, "
            "is the model's guess. `ambs record-episodes --explore 0.2` logs other actions, too."
        )
    else:
        told.append(
            f"In {other:.0%} of the steps something else was executed than the policy proposed; so it knows that, too."
        )
    labels = np.concatenate([one.labels for one in episodes])
    constant = [name for name, column in zip(episodes[0].atoms, labels.T, strict=True) if column.all() == column.any()]
    of_psi = [name for name in constant if name in psi.atoms()]
    if of_psi:
        told.append(f"The label {' and '.join(of_psi)} never changes in them: the shield cannot tell when it would.")
    told.append(
        "Where the logs have not been it cannot foresee anything, and it does not know that it cannot: guarded, the policy comes "
        "to states in which it never was. Its level was set on logs that are held out, not by acting in the world."
    )
    if any(one.reward is None for one in episodes):
        told.append("It knows nothing of rewards, nor of what its overrides cost.")
    return told


def _files(data: Any) -> list[Path]:
    """The files, whatever they are listed in."""
    if not isinstance(data, Iterable) or isinstance(data, str | bytes):
        raise UserError(f"data must be a list of files of episodes, such as ['episode-000000.npz'], got {short(data)}")
    files = list(data)
    for one in files:
        if not isinstance(one, str | Path):
            raise UserError(f"data must be paths of files of episodes, and one of them is {short(one)}")
    return [Path(one) for one in files]


def _groups(changes: Any) -> dict[str, Any]:
    if changes is not None and not isinstance(changes, Mapping):
        raise UserError(f"changes must be a mapping of settings, such as {{'seed': 3}}, got {short(changes)}")
    return dict(changes or {})


def _dealt(episodes: Sequence[Episode], most: int, psi: Formula) -> LoggedVectorEnv:
    """The logs side by side in as many environments as will do, or one of the half, so that few of them are read in twice."""
    steps = sum(one.steps for one in episodes)
    most = min(most, len(episodes))
    tried = [LoggedVectorEnv(episodes, count, spec=psi) for count in range(most, -(-most // 2) - 1, -1)]
    return min(tried, key=lambda one: max(one.steps_within(one.rows) / steps, 1 + TWICE))


def _paced(config: Config, worlds: LoggedVectorEnv, updates: int) -> Config:
    """The settings for these logs: so many updates, spread over the last part of them."""
    frames, before, training = *map(worlds.steps_within, (worlds.rows, worlds.rows - 1)), config.training
    prefill = int(READ_FIRST * before)
    pace = {
        "envs": worlds.num_envs,
        "frames": frames,
        "prefill": prefill,
        # A little more, so that rounding does not cost the last one.
        "train_ratio": (updates + 1e-6) * training.batch * training.length / max(before - prefill, 1),
        "early_ratio": None,
        "explore": 0.0,
        "mirror": False,
        "capacity": worlds.num_envs * max(worlds.rows, training.length),
        "log_every": max(1, frames // ROWS),
        "checkpoint_every": 0,
    }
    return changed(config, {"training": pace})


def _only(names: Any) -> str:
    """The one name that all of them have; empty: there is none."""
    found = set(names)
    return found.pop() if len(found) == 1 else ""


def _seen(episode: Episode) -> str:
    pictures = [part.ndim == 4 for part in episode.observation.values()]
    return "both" if len(set(pictures)) == 2 else "vision" if pictures[0] else "vector"


def _violating(episodes: Sequence[Episode], psi: Formula) -> np.ndarray:
    """Of every state, whether Ψ fails."""
    atoms = Atoms(episodes[0].atoms)
    return np.concatenate([~np.asarray(psi.holds(one.labels, atoms)) for one in episodes])


def _differ(episode: Episode) -> int:
    """Steps in which something else was executed than was proposed."""
    close = np.isclose(episode.wanted, episode.action, atol=1e-4)
    return int((~close if episode.discrete else ~close.all(axis=1)).sum())
