"""A trained agent, ready to act: `ambs.load(run)`, `agent.start(...)`, `agent.act(observation)`."""

import dataclasses
import functools
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ambs.agent.update import Behaviour, init
from ambs.config import Config
from ambs.errors import UserError
from ambs.presets import changed, from_dict
from ambs.shield.decide import Decision, Reason
from ambs.training import checkpoint
from ambs.training.act import Carry, Player, initial_carry
from ambs.training.arrays import restore
from ambs.training.interface import Interface
from ambs.training.loop import compiled_act, default_thresholds
from ambs.training.run_folder import RunFolder
from ambs.training.snapshot import check_meta, fitting


class Agent:
    """Policies, world model and shield of a run; stateful: remembers what it has seen of the present episodes."""

    def __init__(self, player: Player, interface: Interface, config: Config, frames: int | None = None) -> None:
        self.player, self.interface, self.config = player, interface, config
        self.frames = frames
        """Frames after which its checkpoint was written; None: it comes from none."""
        self.start()

    def start(self, batch: int = 1, seed: int = 0, *, shield: bool | None = None, policy: str = "task") -> "Agent":
        """Begin `batch` episodes at once. `shield`: as trained, unless given; `policy`: task or backup."""
        if policy not in ("task", "backup"):
            raise UserError(f"policy must be task or backup, got {policy!r}")
        self.batch, self.root, self.steps = batch, jax.random.key(seed), 0
        self.shielded = self.config.shielded if shield is None else shield
        self._act = compiled_act(self.config, self.shielded, policy)
        self._carry: Carry = initial_carry(self.player, batch)
        self._first = np.ones(batch, bool)
        self.refused = ""
        """What was wrong with the last observation, if it was refused."""
        return self

    def behind(self, **shield: Any) -> "Agent":
        """The same agent behind another shield: fields of `ShieldConfig` by name."""
        config = self.config
        if {"safety_level", "labels"} & set(shield):  # The level in force was calibrated for something else.
            config = dataclasses.replace(config, shield=config.shield.as_asked())
        config = changed(config, {"shield": shield})
        player = self.player
        if "label_threshold" in shield:  # Else those that the training has found stay.
            player = player._replace(thresholds=default_thresholds(config, player.thresholds.shape[0]))
        return Agent(player, self.interface, config, self.frames)

    def restart(self, which: np.ndarray) -> None:
        """The next observation is the first of a new episode where `which` `[batch]` is true."""
        self._first = self._first | np.asarray(which, bool)

    def act(self, observation: Any, labels: Any = None) -> Decision:
        """Decide on observations as the environment gives them, `[batch, …]`, or a single one if the batch is one.

        The decision's actions are the environment's. `labels` bool `[batch, atoms]` are those of the current states, if
        they are known; else the shield goes by what the model makes of the observation.

        An observation that is not finite, or not of the shape and kind that the agent was trained on, is refused: memory
        stays as it was, the backup policy acts on the last good state, and `refused` says what is wrong.
        """
        parts, self.refused = self._checked(observation)
        usable = np.full(self.batch, not self.refused)
        self._carry, decision = self._act(
            self.player,
            self._carry,
            parts,
            self._first,
            self._known(labels),
            np.array(True),
            self.root,
            self.steps,
            usable,
        )
        for name, part in parts.items():
            bad = (
                [] if self.refused else np.flatnonzero(~np.isfinite(part.reshape(self.batch, -1)).all(axis=1)).tolist()
            )
            if bad:
                usable[bad] = False
                self.refused = f"the {name} of observation {bad[0]} is not finite"
        self._first = self._first & ~usable
        self.steps += 1
        decision = jax.device_get(decision)
        self.raw_action, self.raw_proposed = decision.action, decision.proposed
        to_env = self.interface.to_env
        return decision._replace(action=to_env(decision.action), proposed=to_env(decision.proposed))

    @property
    def memory(self) -> Carry:
        """What the agent remembers after the last decision; the next one makes it invalid."""
        return self._carry

    def follow(self, memory: Carry, observation: Any, labels: Any, root: Any, step: int) -> tuple[Carry, Any]:
        """What the same policy would do without a shield, with a memory of its own: that memory, and actions as the model
        has them. The agent itself stays as it is."""
        nobody, everybody = np.zeros(self.batch, bool), np.ones(self.batch, bool)
        parts, known = self._checked(observation)[0], self._known(labels)
        off = np.array(False)
        memory, decision = self._act(self.player, memory, parts, nobody, known, off, root, step, everybody)
        return memory, decision.action

    def explain(self, decision: Decision, env: int = 0) -> str:
        """One sentence on the last decision."""
        if self.refused and decision.reason[env] == Reason.NON_FINITE:
            return f"override: {self.refused}; the backup policy acts on the last good state"
        _, atoms = self.player.model.trace_formula()
        return decision.explain(env, atoms, self.config.shield)

    def _known(self, labels: Any) -> np.ndarray | None:
        if labels is None:
            return None
        wanted = (self.batch, len(self.interface.spec.atoms))
        known = np.asarray(labels)
        if known.dtype != np.bool_ or known.shape not in (wanted, wanted[1:] if self.batch == 1 else wanted):
            raise UserError(f"labels must be truth values of shape {wanted}, got {known.dtype} of shape {known.shape}")
        return known.reshape(wanted)

    def _checked(self, observation: Any) -> tuple[dict[str, np.ndarray], str]:
        """The observation as the model takes it and nothing; or zeros and what is wrong with it."""
        spec = self.interface.spec.observation.seen
        shapes = {"image": (spec.image, spec.image, spec.channels), "vector": (spec.vector,)}
        wanted = {name: shape for name, shape in shapes.items() if shape[0]}
        try:
            return self._typed(observation, wanted), ""
        except UserError as error:
            kinds = {"image": np.uint8, "vector": np.float32}
            return {name: np.zeros((self.batch, *shape), kinds[name]) for name, shape in wanted.items()}, str(error)

    def _typed(self, observation: Any, wanted: dict[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
        raw = observation if isinstance(observation, dict) else {"only": observation}
        if self.interface.spec.observation.unseen:
            raw = {name: part for name, part in raw.items() if np.ndim(part) > 2}
        if len(raw) != len(wanted):
            raise UserError(f"an observation of this agent has {' and '.join(wanted)}, got {len(raw)} parts")
        sizes = {len(shape): (name, shape) for name, shape in wanted.items()}
        found: dict[str, np.ndarray] = {}
        for part in raw.values():
            try:
                array = np.asarray(part)
            except Exception as error:
                raise UserError(f"an observation must be an array, got {type(part).__name__}") from error
            if self.batch == 1 and array.shape in wanted.values():
                array = array[None]
            name, shape = sizes.get(array.ndim - 1, ("", ()))
            if array.shape != (self.batch, *shape) or not name:
                shapes = " or ".join(str((self.batch, *shape)) for _, shape in sizes.values())
                raise UserError(f"an observation must have shape {shapes}, got {array.shape}")
            if (name == "image" and array.dtype != np.uint8) or (name == "vector" and array.dtype.kind not in "fiub"):
                kind = "uint8" if name == "image" else "a real number"
                raise UserError(f"entries of the {name} must be {kind}, got {array.dtype}")
            with np.errstate(over="ignore"):
                found[name] = array if name == "image" else array.astype(np.float32)
        if len(found) != len(wanted):
            raise UserError(f"an observation of this agent has {' and '.join(wanted)}, got one of them twice")
        return found


def _in_force(config: Config, level: np.ndarray | None) -> Config:
    """The settings with the level that the last calibration put in force."""
    if level is None:
        return config
    levels = config.shield.levels()
    number = int(level)
    if not 0 <= number < len(levels):
        raise UserError(f"its level in force is number {number} of {len(levels)}")
    return dataclasses.replace(config, shield=config.shield.at_level(levels[number]))


def load(run: Path | str, frames: int | None = None) -> Agent:
    """The agent of a run folder: its newest intact checkpoint, or the one at `frames`; all but what only learning needs."""
    folder = RunFolder.open(Path(run))
    config = from_dict(folder.config)
    found = checkpoint.load(folder.checkpoints, frames, chunks=False)
    check_meta(found)
    with fitting(found):
        interface = Interface.from_dict(found.meta["interface"])
        fresh = functools.partial(init, interface.spec, config, discrete=interface.discrete)
        like = jax.eval_shape(lambda key: fresh(key=key), jax.random.key(0))
        wanted = {name: getattr(like, name) for name in ("model", "behaviour")}
        arrays = {name: array for name, array in found.groups["learned"].items() if name.partition("/")[0] in wanted}
        parts = restore(wanted, arrays)
        memory = {"thresholds": jnp.zeros(len(parts["model"].trace_formula()[1]))}
        thresholds = restore(memory, {"thresholds": found.groups["memory"]["thresholds"]})["thresholds"]
        config = _in_force(config, found.groups["memory"].get("level"))
    behaviour: Behaviour = parts["behaviour"]
    player = Player(parts["model"], behaviour.actors, behaviour.critics, thresholds)
    return Agent(player, interface, config, found.step)
