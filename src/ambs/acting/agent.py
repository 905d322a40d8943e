"""A trained agent, ready to act: `ambs.load(run)`, `agent.start(...)`, `agent.act(observation)`."""

import dataclasses
import functools
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from ambs.acting.act import ActorState, Player, compiled_act, default_thresholds, initial_actor_state
from ambs.acting.adapter import Interface
from ambs.acting.fitting import check_meta, fitting
from ambs.acting.imagined import Imagined, in_model_terms
from ambs.acting.ranges import check_level, check_thresholds, executed
from ambs.acting.worlds import check_world, make_envs, worlds_of
from ambs.agent.behaviour import Behaviour
from ambs.agent.update import init
from ambs.config import LARGEST, Config
from ambs.config.checks import MOST_ENVS, checked, function, is_among, short, whole
from ambs.config.resolve import changed, from_dict, with_spec
from ambs.envs.options import refuse_constant
from ambs.envs.spaces import as_array
from ambs.envs.vector.vector import LabelledVectorEnv
from ambs.errors import UserError
from ambs.forks import refuse_after_fork
from ambs.shield.config import margin
from ambs.shield.rules import Decision, Reason
from ambs.spec.formula import Formula, bracketed
from ambs.spec.parser import parse_formula
from ambs.storage import checkpoint
from ambs.storage.arrays import restore
from ambs.storage.binding import check_bound
from ambs.storage.run_folder import RunFolder

if TYPE_CHECKING:
    from ambs.acting.guard import Guard

NEUTRAL = {"hold", "latch", "leave", "failsafe_after", "traces", "chunk", "label_threshold"}
"""Settings of a shield that leave the level in force what it was calibrated for."""
BUSY = "this agent is deciding in another thread at the moment: load one for each thread"


class Agent:
    """Policies, world model and shield of a run; stateful: remembers what it has seen of the present episodes."""

    def __init__(
        self,
        player: Player,
        interface: Interface,
        config: Config,
        worlds: Callable[[int], LabelledVectorEnv] | None = None,
        frames: int | None = None,
        imagined: Imagined | None = None,
        learned_for: Formula | None = None,
    ) -> None:
        """`worlds` makes so many environments to play in; None: those of the settings, whosever they are. `imagined`: a policy in
        the model's terms that acts in imagined futures in place of the task policy (`imagining`). `learned_for`: the Ψ that its
        critics know; None: the interface's."""
        if not isinstance(config, Config):
            raise UserError(f"an agent comes from ambs.load(run); its settings must be a Config, got {short(config)}")
        self.imagined = imagined
        self.learned_for = interface.spec.psi if learned_for is None else learned_for
        self.player, self.interface, self.config = player, interface, config
        self.worlds = worlds or functools.partial(make_envs, config)
        self._lock = threading.Lock()
        self.frames = frames
        """Frames after which its checkpoint was written; None: it comes from none."""
        self.start()

    def start(self, batch: int = 1, seed: int = 0, *, shield: bool | None = None, policy: str = "task") -> "Agent":
        """Begin `batch` episodes at once. `shield`: as trained, unless given; `policy`: task or backup.

        The episodes belong to the thread that acts in them first; another one is refused until it calls `start` itself.
        """
        refuse_after_fork()
        if self._lock.locked():
            raise UserError(BUSY)
        batch, seed = whole("batch", batch, 1, MOST_ENVS), whole("seed", seed, 0, LARGEST)
        if shield is not None and not isinstance(shield, bool | np.bool_):
            raise UserError(f"shield must be True, False or None, got {shield!r}")
        if not is_among(policy, ("task", "backup")):
            raise UserError(f"policy must be task or backup, got {policy!r}")
        self.batch, self.root, self.steps = batch, jax.random.key(seed), 0
        self.shielded = self.config.shielded if shield is None else bool(shield)
        self._act = compiled_act(self.config, self.shielded, policy, self.imagined)
        self._carry: ActorState = initial_actor_state(self.player, batch)
        self._first = np.ones(batch, bool)
        self._thread: int | None = None
        self.refused = ""
        """What was wrong with the last observation, if it was refused."""
        return self

    def behind(self, **shield: Any) -> "Agent":
        """The same agent behind another shield: fields of `ShieldConfig` by name."""
        config = self.config
        if set(shield) - NEUTRAL:  # The level in force was calibrated for something else.
            config = dataclasses.replace(config, shield=config.shield.as_asked())
        if "safety_level" in shield and "approximation_error" not in shield:
            level = checked("shield.safety_level", shield["safety_level"], float)
            shield = {**shield, "approximation_error": margin(config.shield.approximation_error, level)}
        config = changed(config, {"shield": shield})
        self._refuse_critics(config, self.interface.spec.psi)
        player = self.player
        if "label_threshold" in shield:  # Else those that the training has found stay.
            player = player._replace(thresholds=default_thresholds(config, player.thresholds.shape[0]))
        return Agent(player, self.interface, config, self.worlds, self.frames, self.imagined, self.learned_for)

    def _refuse_critics(self, config: Config, psi: Formula) -> None:
        """Safety critics cannot judge another Ψ than the one they were learned for."""
        if config.shield.critics_used is not None and psi != self.learned_for:
            raise UserError(
                f"this agent's safety critics were learned for {self.learned_for} and cannot judge {psi}: choose another kind "
                "of shield, or leave critics out"
            )

    def imagining(self, policy: Imagined) -> "Agent":
        """The same agent, in whose imagined futures this JAX function of (key, observation) acts, on what the model decodes, in
        place of the task policy or the clone of one that is guarded. It gives an action of the environment."""
        acting = in_model_terms(policy, self.interface)
        return Agent(self.player, self.interface, self.config, self.worlds, self.frames, acting, self.learned_for)

    def held_to(self, spec: str, say: Callable[[str], Any] = warnings.warn) -> "Agent":
        """The same agent behind a shield for another property over the atoms that its model knows: other Δ, n or Ψ, or a bounded
        path formula such as `P>=0.9 [ !hazard U<=20 goal ]`. Nothing is learned again; `say` is told what is left out for that.

        What violates Ψ is counted by the new one: Φ of G Φ, Φ₁ ∨ Φ₂ of Φ₁ U Φ₂; F and X leave Ψ what it was.
        """
        known, before = self.interface.spec, self.config
        function("say", say, "that takes a sentence")
        if self.player.model.heads.labels is None:
            raise UserError(
                "this agent's model knows the cost of one formula and no atoms: it cannot be held to another"
            )
        config = with_spec(
            dataclasses.replace(before, psi=str(known.psi), shield=before.shield.as_asked()),
            spec,
            known.atoms,
            any_path=True,
        )
        psi = parse_formula(config.psi or "", known.atoms)
        refuse_constant(psi)
        if (psi != known.psi or config.shield.path is not None) and before.shield.critics_used is not None:
            config = changed(config, {"shield": {"critics": None, "rolled": None}})
            self._refuse_critics(config, psi)  # Without them nothing is left of the kind that is called after them.
            say(f"critics that were learned for {known.psi} are left out: all steps are imagined")
        unknown = [name for name in known.atoms.names if name in psi.atoms() and name not in self.learned_for.atoms()]
        if unknown:
            say(
                f"the backup policy was learned for {self.learned_for}: it has not learned to heed {' and '.join(unknown)}"
            )
        player = self.player._replace(model=self.player.model.for_formula(psi))
        interface = dataclasses.replace(self.interface, spec=known._replace(psi=psi))
        worlds = functools.partial(_counting, self.worlds, psi)
        return Agent(player, interface, config, worlds, self.frames, self.imagined, self.learned_for)

    @property
    def asked(self) -> str:
        """The property that its shield is asked to keep."""
        shield = self.config.shield.as_asked()
        path = shield.path or f"G<={shield.horizon} {bracketed(self.interface.spec.psi, 0)}"
        return f"P>={round(1 - shield.safety_level, 12):g} [ {path} ]"

    def guard(self, policy: Any, **options: Any) -> "Guard":
        """This agent's shield around a policy that somebody else has made; options are those of `ambs.acting.guard.Guard`."""
        from ambs.acting.guard import Guard

        return Guard(self, policy, **options)

    def restart(self, which: np.ndarray) -> None:
        """The next observation is the first of a new episode where `which` `[batch]` is true."""
        self._first = self._first | self._truths("restart", which)

    def act(self, observation: Any, labels: Any = None, proposed: Any = None) -> Decision:
        """Decide on observations as the environment gives them, `[batch, …]`, or a single one if the batch is one.

        The decision's actions are the environment's. `labels` bool `[batch, atoms]` are those of the current states, if
        they are known; else the shield goes by what the model makes of the observation. `proposed` `[batch, …]` are actions
        of the environment that somebody else proposes, in place of the task policy: what lies beyond the bounds is cut to
        them, and what is no action (NaN, or none of the discrete ones) is overridden.

        An observation that is not finite, lies outside the bounds of its space, has masked entries, or is not of the shape and
        kind that the agent was trained on, is refused: memory stays as it was, the backup policy's best action for the last
        good state is executed, after `shield.failsafe_after` refusals in a row the fallback, and `refused` says what is wrong.
        """
        self._claim()
        try:
            return self._decide(observation, labels, None if proposed is None else self._wanted("proposed", proposed))
        finally:
            self._lock.release()

    def _claim(self) -> None:
        """Take the lock; refuse a second thread, whose episodes would get mixed up with those of the first."""
        refuse_after_fork()
        mine = threading.get_ident()
        if not self._lock.acquire(blocking=False):
            raise UserError(BUSY)
        if self._thread not in (None, mine):
            self._lock.release()
            raise UserError("this agent acts in episodes of another thread: load one for each, or call start first")
        self._thread = mine

    def observe(self, executed: Any, which: np.ndarray | None = None) -> None:
        """Say what was really executed `[batch, …]` since the last decision, where something else changed it (`which` `[batch]`;
        None: everywhere): memory goes on from that."""
        actions = self._wanted("executed", executed)
        if not np.isfinite(actions).all():
            raise UserError("what was executed must be actions of the environment, and some of these are none")
        where = np.ones(self.batch, bool) if which is None else self._truths("which", which)
        action = jnp.where(jnp.asarray(where)[:, None], jnp.asarray(actions), self._carry.action)
        self._carry = self._carry._replace(action=action)

    def _truths(self, name: str, given: Any) -> np.ndarray:
        """A truth value for each of the episodes `[batch]`."""
        found = as_array(name, given)
        if found.dtype != np.bool_ or found.shape != (self.batch,):
            raise UserError(f"{name} takes {self.batch} truth values, got {found.dtype} of shape {found.shape}")
        return found

    def _wanted(self, name: str, actions: Any) -> np.ndarray:
        """Actions of the environment in the model's terms `[batch, actions]`; NaN where one is none."""
        wanted = (self.batch,) if self.interface.discrete else (self.batch, self.interface.spec.actions)
        array = as_array(f"{name} actions", actions)
        if array.shape != wanted and not (self.batch == 1 and array.shape == wanted[1:]):
            raise UserError(f"{name} actions must have shape {wanted}, got {array.shape}")
        array = array.reshape(wanted)
        if array.dtype.kind not in "fiub" or (self.interface.discrete and array.dtype.kind not in "iu"):
            raise UserError(f"{name} actions must be {'whole ' * self.interface.discrete}numbers, got {array.dtype}")
        if self.interface.discrete:
            known = self.interface.allows(array)
            return np.where(known[:, None], self.interface.from_env(np.where(known, array, 0)), np.float32(np.nan))
        return self.interface.from_env(array.clip(self.interface.low, self.interface.high))

    def _decide(self, observation: Any, labels: Any, proposed: np.ndarray | None) -> Decision:
        parts, self.refused = self._checked(observation)
        usable = np.full(self.batch, not self.refused)
        if "vector" in parts and not self.refused:
            self._refuse_outside(parts["vector"], usable)
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
            proposed,
        )
        for name, part in parts.items():
            bad = np.flatnonzero(usable & ~np.isfinite(part.reshape(self.batch, -1)).all(axis=1)).tolist()
            if bad:
                usable[bad] = False
                self.refused = f"the {name} of observation {bad[0]} is not finite"
        self._first = self._first & ~usable
        self.steps += 1
        decision = jax.device_get(decision)
        self.raw_action, self.raw_proposed = decision.action, decision.proposed
        return executed(self.interface, decision)

    @property
    def memory(self) -> ActorState:
        """What the agent remembers after the last decision; the next one makes it invalid."""
        return self._carry

    def follow(self, memory: ActorState, observation: Any, labels: Any, root: Any, step: int) -> tuple[ActorState, Any]:
        """What the same policy would do without a shield, with a memory of its own: that memory, and actions as the model
        has them. The agent itself stays as it is."""
        is_first, usable = np.zeros(self.batch, bool), np.ones(self.batch, bool)
        parts, known = self._checked(observation)[0], self._known(labels)
        off = np.array(False)
        memory, decision = self._act(self.player, memory, parts, is_first, known, off, root, step, usable)
        return memory, decision.action

    def explain(self, decision: Decision, env: int = 0) -> str:
        """One sentence on the last decision."""
        if not isinstance(decision, Decision):
            raise UserError(f"explain takes a decision, such as agent.act gives, got {short(decision)}")
        env = whole("env", env, 0, len(decision.reason) - 1)
        if self.refused and decision.reason[env] == Reason.NON_FINITE:
            most = self.config.shield.failsafe_after
            failsafe = most is not None and decision.memory.refused[env] > most
            acts = "the fallback action is executed" if failsafe else "the backup policy acts on the last good state"
            return f"override: {self.refused}; {acts}"
        _, atoms = self.player.model.trace_formula()
        return decision.explain(env, atoms, self.config.shield)

    def _known(self, labels: Any) -> np.ndarray | None:
        if labels is None:
            return None
        wanted = (self.batch, len(self.interface.spec.atoms))
        if np.ma.is_masked(labels):
            raise UserError("labels must be known or None, and some of these are masked")
        known = as_array("labels", labels)
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

    def _refuse_outside(self, vector: np.ndarray, usable: np.ndarray) -> None:
        """Take note of vectors that are finite and lie outside the bounds of their space."""
        outside = np.isfinite(vector).all(axis=1) & ~self.interface.within(vector)
        if outside.any():
            usable[outside] = False
            number = int(np.flatnonzero(outside)[0])
            self.refused = f"the vector of observation {number} lies outside the bounds of its space"

    def _typed(self, observation: Any, wanted: dict[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
        raw = observation if isinstance(observation, dict) else {"only": observation}
        if self.interface.spec.observation.unseen:
            raw = {name: part for name, part in raw.items() if np.ndim(part) > 2}
        if len(raw) != len(wanted):
            raise UserError(f"an observation of this agent has {' and '.join(wanted)}, got {len(raw)} parts")
        sizes = {len(shape): (name, shape) for name, shape in wanted.items()}
        found: dict[str, np.ndarray] = {}
        for part in raw.values():
            if np.ma.is_masked(part):
                raise UserError("an observation must be whole, and entries of this one are masked")
            array = as_array("an observation", part)
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


def _counting(worlds: Callable[[int], LabelledVectorEnv], psi: Formula, count: int) -> LabelledVectorEnv:
    """The same worlds, counting what violates this Ψ."""
    envs = worlds(count)
    envs.psi = psi
    return envs


def _in_force(config: Config, level: np.ndarray | None) -> Config:
    """The settings with the level that the last calibration put in force."""
    if level is None:
        return config
    return dataclasses.replace(
        config, shield=config.shield.at_level(config.shield.levels()[check_level(level, config)])
    )


def load(
    run: Path | str,
    frames: int | None = None,
    *,
    env: str | None = None,
    trust: bool = False,
    say: Callable[[str], Any] = warnings.warn,
) -> Agent:
    """The agent of a run folder: its newest intact checkpoint, or the one at `frames`; all but what only learning needs.

    A checkpoint that was saved with other settings is refused, and one that does not tell is, too, unless you `trust` it.
    To play it in an environment that is none of ours, whose name the folder has, name that again as `env` or trust the folder.
    `say` gets a sentence about each damaged checkpoint that was passed over, and about what was trusted.
    """
    refuse_after_fork()
    if not isinstance(run, str | Path) or "\0" in str(run):
        raise UserError(f"load takes the path of a run folder, got {run!r}")
    if env is not None and not isinstance(env, str):
        raise UserError(f"env must be the run's environment as its name or module:factory, got {env!r}")
    function("say", say, "that takes a sentence")
    trust = checked("trust", trust, bool)
    if frames is not None:
        frames = whole("frames", frames, 0)
    folder = RunFolder.open(Path(run))
    config = from_dict(folder.config)
    if env is not None:
        check_world(config, env)
    found = checkpoint.load(folder.checkpoints, frames, chunks=False)
    for sentence in (*found.skipped, *check_bound(found, folder, config, trust=trust)):
        say(sentence)
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
        check_thresholds(thresholds)
        config = _in_force(config, found.groups["memory"].get("level"))
    behaviour: Behaviour = parts["behaviour"]
    player = Player(parts["model"], behaviour.actors, behaviour.critics, thresholds)
    return Agent(player, interface, config, functools.partial(worlds_of, config, env, trust), found.step)
