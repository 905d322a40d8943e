"""Algorithm 1, end to end: play, remember, learn, shield.

One turn of the wheel: add the latest row to the replay buffer, start `act` on the device, start the updates that are due
behind it, and step the environments while those run. A batch therefore never holds the step that is being played: the lag is
always one step, and a run is deterministic. Clocks and environments are touched here, disks by those who watch (`observers`).
"""

import time
import zlib
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ambs.acting.accounting import Accounts
from ambs.acting.act import Player, compiled_act, default_thresholds, initial_actor_state
from ambs.acting.adapter import Interface, interface, survey
from ambs.acting.foreign import ForeignPolicy
from ambs.acting.rehearsal import check_given, check_meant, check_started
from ambs.acting.worlds import Make, as_deployed, make_envs, title
from ambs.agent.update import Learned
from ambs.config import Config
from ambs.data import Experience
from ambs.envs.saving import NOT_SAVED
from ambs.envs.vector.vector import LabelledVectorEnv
from ambs.errors import RunError, UserError
from ambs.shield.rules import Decision
from ambs.streams import stream
from ambs.training.asking import Act, Clock, Learn, Life, Request, lived
from ambs.training.calibration import Calibration, said
from ambs.training.compiled import (
    compiled_init,
    compiled_learn,
    first_level,
    without_seed,
)
from ambs.training.learn import SKIPPED, updates_per_call
from ambs.training.observers import Observer, Row
from ambs.training.parallel import on_first
from ambs.training.replay import Replay, Use, choose_place, needed
from ambs.training.state import TrainState

SPELL = 8
"""Steps for which something else than a policy that is given acts."""
AT_RANDOM = 0.5
"""Share of the prefill in which that is done."""


class Diverged(RunError):  # noqa: N818 (it is what happened)
    """Too many updates in a row were not finite."""


class Trainer(TrainState):
    """A run in progress: its state, and what turns it over. `life` is the one training loop; `run` gives it its own answers.

    `known` is what an earlier start of this run found out about its environment; None: find out. `policy` is the one that acts,
    where the method guards a policy that is given (`ambs.acting.foreign`), and `make` makes an environment without a name.
    """

    def __init__(
        self,
        config: Config,
        observers: Iterable[Observer] = (),
        known: Interface | None = None,
        *,
        policy: Any = None,
        make: Make | None = None,
    ) -> None:
        self.config, self.observers, self._given = config, list(observers), policy
        self._asked_of_policy = (0, 0)
        """How often a policy that is given was asked by this process, and how often it failed."""
        check_given(config, policy)
        self.root = jax.random.key(config.seed)
        envs = self._worlds(make)
        try:
            super().__init__(**self._first(envs, known))
        except BaseException:
            envs.close()  # Nobody else could.
            raise
        self.pending: list[dict[str, Any]] = []
        """Metrics of updates that may not be finished; empty whenever the state is captured."""
        self.common = without_seed(config)
        """The settings, as what is compiled is kept by."""
        self._act = compiled_act(self.common, config.shielded)
        self._learn = compiled_learn(self.common, envs.mirror if config.training.mirror else None)
        self.per_call = updates_per_call(config, images=self.interface.spec.observation.image > 0)
        self.calibration = Calibration(self.common)
        self._clock = (time.monotonic(), 0, 0)

    def _worlds(self, make: Make | None) -> LabelledVectorEnv:
        """The environments that are learned from."""
        return make_envs(self.config, learning=True, make=make)

    def _first(self, envs: LabelledVectorEnv, known: Interface | None) -> dict[str, Any]:
        """The fields of a state before the first turn."""
        config, training = self.config, self.config.training
        shown = _meet(envs, config, known)
        fresh = compiled_init(shown.spec, without_seed(config), config.model.widths, shown.discrete)
        learned = fresh(stream(self.root, "init"))
        thresholds = default_thresholds(config, len(learned.model.trace_formula()[1]))
        level = first_level(config)
        raw, infos = envs.reset(seed=_seed(config.seed, "layouts"))
        check_started(config, infos)
        if envs.can_save:
            envs.get_state()  # Whoever fails to be saved should not play for hours before that shows.
        if envs.unsaved:
            raise UserError(f"{title(config.env)} cannot be saved: {next(iter(envs.unsaved.values()))}")
        self.foreign = None
        if self._given is not None:
            spaces = as_deployed(config, envs.single_observation_space), envs.single_action_space
            self.foreign = ForeignPolicy(self._given, *spaces, deterministic=training.deterministic)
        row = self._with_proposals(shown.first_rows(raw, infos, config), raw, shown)
        return {
            "learned": learned,
            "carry": initial_actor_state(player_of(learned, thresholds, level), training.envs),
            "thresholds": thresholds,
            "level": level,
            "row": row,
            "labels": infos["labels"],
            "accounts": Accounts(training.envs, envs.atoms.names, faults=len(envs.faults)),
            "envs": envs,
            "interface": shown,
            "replay": self._ring(row),
            "last_totals": Accounts(training.envs, ()).totals(),
        }

    def _ring(self, row: Experience) -> Replay:
        """The replay buffer, for rows like this one."""
        training = self.config.training
        place = choose_place(training.replay, row, needed(training.capacity, training.steps, training.envs))
        return Replay(row, training.capacity, place, filled=training.steps, stored=training.store_replay)

    @property
    def player(self) -> Player:
        """What acting needs of what was learned."""
        learned = self.learned if self.config.training.devices == 1 else on_first(self.learned)
        return player_of(learned, self.thresholds, self.level)

    @property
    def caveat(self) -> str:
        """What somebody who starts this run should know of its environment, in a sentence; empty: nothing."""
        return "" if self.envs.can_save else f"{title(self.config.env)} cannot be saved: {NOT_SAVED}"

    @property
    def finished(self) -> bool:
        """Whether all frames have been played."""
        return self.accounts.frames >= self.config.training.frames

    def run(self, until: Callable[[], bool] = lambda: False) -> bool:
        """Play and learn to the end, or until somebody says so; the observers hear of every turn. Returns `finished`."""
        return lived(self.life(until), self.answer)

    def turn(self) -> None:
        """One step of all environments, and the updates that are due."""
        lived(self.moves(), self.answer)

    def life(self, until: Callable[[], bool]) -> Life[bool]:
        """`run`, whoever answers."""
        while not self.finished and not until():
            yield from self.moves()
            for observer in self.observers:
                observer.turn(self)
        return self.finished

    def moves(self) -> Life[None]:
        """`turn`, whoever answers."""
        training = self.config.training
        self.replay.add(self.row, self.accounts.open["backup"])
        playing = self.accounts.agent_steps >= training.prefill
        shielding = self.config.shielded and playing and self.accounts.frames >= training.shield_from
        actions, decision = yield from self._chosen(playing, shielding)
        raw, _, terminated, truncated, infos = self.envs.step(self.interface.to_env(actions))
        ended = (terminated, truncated)
        arrived = self.interface.rows(raw, actions, infos, ended, self.config)
        self.row = self._with_proposals(arrived, raw, self.interface)
        self.labels = infos["labels"]
        self.turns += 1
        for row in self.accounts.step(infos, ended, decision, shielding):
            for observer in self.observers:
                observer.episode(row)
        if self.accounts.frames // training.log_every > self.logged // training.log_every or self.finished:
            self.logged = self.accounts.frames
            metrics = yield from self._metrics()
            for observer in self.observers:
                observer.metrics(metrics)

    def answer(self, request: Request) -> Any:
        """What is asked for, computed for this run alone."""
        if isinstance(request, Act):
            self.carry, decision = self._act(self.player, self.carry, *request.arguments(self.root))
            return decision
        if isinstance(request, Learn):
            self.learned, metrics = self._learn(self.learned, *request.arguments(self.root))
            return metrics
        return clocked(
            self.learned, self.carry, lambda carry: self._act(self.player, carry, *request.act.arguments(self.root))
        )

    def _chosen(self, playing: bool, shielding: bool) -> Life[tuple[np.ndarray, Decision | None]]:
        """What is done in all environments, in the model's terms, and what was decided, if anything was; learns on the way."""
        wanted = self._wanted(self.config.training.explore if playing else AT_RANDOM)
        if playing:
            decision = yield self._question(wanted, shielding)
            yield from self._learn_what_is_due()
            if shielding:
                self.replay.decided(said(decision))
            return np.asarray(decision.action), decision
        if wanted is not None:
            return np.where(np.isfinite(wanted), wanted, 0.0).astype(np.float32), None
        rng = self.lot("prefill", self.turns)
        return self.interface.random(rng, self.config.training.envs), None

    def _with_proposals(self, row: Experience, raw: Any, shown: Interface) -> Experience:
        """The row with what a policy that is given proposes at its observations; NaN where that is nothing."""
        if self.foreign is None:
            return row
        found = self.foreign.propose(as_deployed(self.config, raw), np.asarray(row.is_first))
        asked, failed = self._asked_of_policy
        self._asked_of_policy = (asked + found.failed.size, failed + int(found.failed.sum()))
        if not asked and found.failed.all():
            raise UserError(f"the policy proposes nothing that could be guarded: {found.why[0]}")
        proposed: Any = np.where(found.failed[:, None], np.float32(np.nan), shown.from_env(found.action))
        return row._replace(proposed=proposed)

    def _wanted(self, explore: float) -> np.ndarray | None:
        """What is put to the shield in place of the actor's own proposal: that of a policy that is given. For this share of the
        time, in worlds that are learned from, something else, for a spell: an action drawn at random, or nothing (NaN), so
        that the backup policy acts, and is seen for what it is. None: the actor's own."""
        proposed = self.row.proposed
        if proposed is None or not explore:
            return None if proposed is None else np.asarray(proposed)
        count, newest = self.config.training.envs, (self.replay.count - 1) % self.replay.slots
        rng = self.lot("explore", self.turns // SPELL)
        lot, learning = rng.uniform(size=count), self.replay.use[newest] == Use.LEARNING
        drawn, none = learning & (lot < explore / 2), learning & (lot >= explore / 2) & (lot < explore)
        wanted = np.where(drawn[:, None], self.interface.random(rng, count), proposed)
        return np.where(none[:, None], np.float32(np.nan), wanted)

    def _question(self, wanted: np.ndarray | None, shielding: bool) -> Act:
        """What is to be decided now, in every environment."""
        row = self.row
        return Act(row.observation, row.is_first, self.labels, np.array(shielding), self.turns, wanted)

    def _learn_what_is_due(self) -> Life[None]:
        training = self.config.training
        due = training.updates_due(self.accounts.agent_steps - training.prefill)
        while due >= self.updates + self.per_call:
            if not self.replay.can_draw(training.length):
                return
            rng = self.lot("replay", self.updates)
            place = self.replay.draw(rng, (self.per_call, training.batch), training.length)
            batches = self.replay.windows(*place, training.length)
            metrics = yield Learn(batches, self.updates)
            self.pending.append(metrics)
            self.updates += self.per_call
            self.calibration.when_due(self)

    def lot(self, name: str, number: int) -> np.random.Generator:
        """Chance for this purpose, the same whenever it is asked for."""
        return np.random.default_rng([self.config.seed, _tag(name), number])

    def gather(self) -> None:
        """Take in the metrics of finished updates; stops a run whose updates are no longer finite."""
        for metrics in self.pending:
            values = {name: float(value) for name, value in jax.device_get(metrics).items()}
            skipped, bad = int(values.pop(SKIPPED)), int(values.pop("updates/bad_run"))
            self.skipped += skipped
            self.bad_run = self.bad_run + self.per_call if bad == self.per_call else bad
            if skipped < self.per_call:
                for name, value in values.items():
                    total, count = self.sums.get(name, (0.0, 0))
                    self.sums[name] = (total + value, count + 1)
        self.pending = []
        if self.bad_run > self.config.training.max_skipped:
            raise Diverged(
                f"{self.bad_run} updates in a row had a non-finite loss or gradient and were skipped; what is kept is "
                "finite. Try a smaller learning rate (--model.learning-rate, --agent.learning-rate), and look at "
                "rewards and observations for values that are far out of range"
            )

    def _metrics(self) -> Life[Row]:
        self.gather()
        now, before = self.accounts.totals(), self.last_totals
        self.last_totals = now
        change = {name: now[name] - before[name] for name in now}
        row: Row = {**now, "updates": self.updates, "updates/skipped": self.skipped}
        row["violations_per_1000"] = 1000 * change["violations"] / max(change["frames"], 1)
        if change["decisions"]:
            row["shield/override_rate"] = change["overrides"] / change["decisions"]
            row["shield/switch_rate"] = change["switches"] / change["decisions"]
            row["shield/traces"] = change["traces"] / change["decisions"]
        row |= {name: total / count for name, (total, count) in self.sums.items()}
        row |= self.label_quality
        row |= {
            f"shield/threshold/{name}": float(value)
            for name, value in zip(
                self.learned.model.trace_formula()[1].names, np.asarray(self.thresholds), strict=True
            )
        }
        if self.level is not None:
            row["shield/level"] = self.config.shield.levels()[int(self.level)]
        asked, failed = self._asked_of_policy
        row |= {"policy/failed": failed / asked} if asked else {}
        self.sums = {}
        clock, frames, updates = self._clock
        elapsed = max(time.monotonic() - clock, 1e-9)
        row["time/frames_per_second"] = (now["frames"] - frames) / elapsed
        row["time/updates_per_second"] = (self.updates - updates) / elapsed
        if self.accounts.agent_steps >= self.config.training.prefill:
            wanted = None if self.row.proposed is None else np.asarray(self.row.proposed)
            row["time/decision_ms"] = yield Clock(self._question(wanted, self.config.shielded))
        self._clock = (time.monotonic(), now["frames"], self.updates)
        return row

    def close(self) -> None:
        """Stop the environments."""
        self.envs.close()


def _meet(envs: LabelledVectorEnv, config: Config, known: Interface | None) -> Interface:
    """The environments as the agent meets them: surveyed before, or, where observations are to be standardised, now.

    Surveyed alike whatever the run's seed: the figures are constants of what is compiled, and so all seeds share one program.
    """
    found = interface(envs, config)
    if known is not None:
        return found.as_surveyed(known)
    check_meant(config, envs.psi)
    return survey(envs, found, _seed(0, "survey")) if config.model.standardise else found


def clocked(before: Any, carry: Any, decide: Callable[[Any], Any]) -> float:
    """Milliseconds of one decision, from a copy of the actor's memory, once what came before has been computed."""
    jax.block_until_ready(before)
    start = time.monotonic()
    jax.block_until_ready(decide(jax.tree.map(jnp.copy, carry)))
    return 1000 * (time.monotonic() - start)


def player_of(learned: Learned, thresholds: jax.Array, level: jax.Array | None) -> Player:
    """What acting needs of what was learned, with what is in force."""
    behaviour = learned.behaviour
    return Player(learned.model, behaviour.actors, behaviour.critics, thresholds, level)


def _seed(seed: int, name: str) -> int:
    """Seed of one of the environments' streams."""
    return int(np.random.SeedSequence([seed, _tag(name)]).generate_state(1)[0])


def _tag(name: str) -> int:
    return zlib.crc32(name.encode())
