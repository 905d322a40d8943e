"""The state of a run: every field of it goes into a checkpoint and comes back, and whoever watches is told of every turn."""

import dataclasses
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ambs
from ambs.acting.accounting import Accounts
from ambs.acting.act import ActorState
from ambs.acting.adapter import Interface, interface
from ambs.acting.fitting import check_meta
from ambs.agent.update import Learned
from ambs.config.resolve import resolve
from ambs.envs.vector.vector import LabelledVectorEnv
from ambs.storage import checkpoint
from ambs.training.observers import Observer
from ambs.training.replay import Replay
from ambs.training.resume import put_back, read, stored
from ambs.training.state import PARTS, TrainState, parts_of
from ambs.training.trainer import Trainer
from tests.training.test_replay import ENVS, filled, row

CONFIG = resolve("quickstart", changes={"env": "ambs/Grid-v0", "training": {"envs": ENVS, "action_repeat": 1}})
FIELDS = [field.name for field in dataclasses.fields(TrainState)]


def played(mark: int) -> TrainState:
    """A state in which nothing is at its default, and every number goes by the mark."""
    envs = ambs.make_vector("Grid", ENVS)
    envs.reset(seed=mark)
    shown = interface(envs, CONFIG)
    seen = shown.spec.observation._replace(mean=(mark / 8,) * 25, deviation=(1.0 + mark,) * 25)
    counts = {field.name: mark + 2 for field in dataclasses.fields(Accounts) if field.type is int}
    accounts = Accounts(
        **counts | {"envs": ENVS}, atoms=envs.atoms.names, labels=[{"lava": mark + index} for index in range(ENVS)]
    )
    for part in accounts.open.values():
        part += np.array(mark, part.dtype)
    numbers = dict.fromkeys(("turns", "updates", "calibrated", "skipped", "bad_run", "logged"), mark + 5)
    return TrainState(
        learned=Learned(*(jnp.full(2, mark + index, jnp.float32) for index in range(7))),
        carry=ActorState(jnp.full((ENVS, 4), mark), jnp.full((ENVS, 2), mark / 2), *(jnp.full(ENVS, mark),) * 3),
        thresholds=jnp.full(2, mark / 10),
        level=jnp.array(mark),
        row=row(mark),
        labels=np.full((ENVS, 2), mark % 2 == 0),
        accounts=accounts,
        envs=envs,
        interface=dataclasses.replace(shown, spec=shown.spec._replace(observation=seen)),
        replay=filled(20 + mark),
        last_totals={"frames": mark},
        sums={"loss": (mark / 4, mark)},
        label_quality={"recall": mark / 8, "precision": float("nan")},
        **numbers,
    )


def content(value):
    """All that a field holds, as arrays and plain values."""
    views = {Accounts: vars, Replay: lambda replay: (replay.data, replay.count), Interface: Interface.to_dict}
    views |= {LabelledVectorEnv: lambda envs: envs.get_state()}
    return next((view(value) for kind, view in views.items() if isinstance(value, kind)), value)


def same(one, two) -> bool:
    mine, theirs = (jax.tree.leaves_with_path(content(value)) for value in (one, two))
    return len(mine) == len(theirs) and all(
        path == where
        and np.array_equal(np.asarray(leaf), np.asarray(other), equal_nan=np.asarray(leaf).dtype.kind == "f")
        for (path, leaf), (where, other) in zip(mine, theirs, strict=True)
    )


def test_every_field_goes_into_a_checkpoint_and_comes_back(tmp_path):
    wanted, state = played(3), played(2)
    assert not [name for name in FIELDS if same(getattr(wanted, name), getattr(state, name))], "these prove nothing"
    groups, meta, pieces = stored(wanted)
    checkpoint.save(tmp_path, 3, groups, meta | {"positions": {}}, pieces)
    found = checkpoint.load(tmp_path)
    check_meta(found)
    put_back(state, read(state, found))
    assert not [name for name in FIELDS if not same(getattr(wanted, name), getattr(state, name))]
    assert state.envs.earlier_faults == 5  # Those of the accounts.


def test_a_field_that_does_not_say_how_it_is_stored_is_refused():
    assert list(PARTS) == FIELDS
    forgetful = dataclasses.make_dataclass("Forgetful", [("fresh", int)])
    with pytest.raises(TypeError, match=r"Forgetful\.fresh does not say how it is stored"):
        parts_of(forgetful)


class Walker(Trainer):
    """Plays a frame a turn, three in all."""

    def __init__(self, observers):
        self.config, self.observers = SimpleNamespace(training=SimpleNamespace(frames=3)), observers
        self.accounts = Accounts(1, ())

    def moves(self):
        self.accounts.frames += 1
        yield from ()


def test_the_loop_tells_everybody_of_every_turn():
    """In order; and it ends when the frames are played or as soon as somebody says so."""
    heard = []
    watchers = [Observer(turn=lambda trainer, who=who: heard.append((who, trainer.accounts.frames))) for who in "ab"]
    walker = Walker(watchers)
    assert walker.run(until=lambda: walker.accounts.frames == 2) is False
    assert heard == [("a", 1), ("b", 1), ("a", 2), ("b", 2)]
    assert walker.run() is True
    assert heard[4:] == [("a", 3), ("b", 3)]
