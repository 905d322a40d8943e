"""A run in environments that cannot be saved: it trains, says so, and goes on with new episodes."""

import gymnasium
import numpy as np
import pytest

import ambs
from ambs.config.resolve import changed, resolve
from ambs.envs.vector.vector import episode_seed
from ambs.storage import checkpoint
from ambs.training.observers import Observer
from ambs.training.session import reopen, start
from ambs.training.trainer import _seed
from tests.tiny import tiny_sizes

CONFIG = resolve(
    "quickstart",
    changes={
        "env": "tests.training.worlds:cartpole",
        # At random throughout: nothing is compiled that takes long.
        "training": {"frames": 100, "envs": 2, "action_repeat": 1, "prefill": 1000, "capacity": 1000},
    },
)
pytestmark = pytest.mark.process


@pytest.fixture
def interrupted(tmp_path):
    """A run that was stopped after 30 turns, in the middle of episodes."""
    with tiny_sizes():
        session = start(CONFIG, tmp_path, command=[])
        assert session.trainer.caveat.endswith("has no get_state and set_state, so a resumed run begins new episodes")
        session.trainer.observers.append(Observer(turn=lambda trainer: trainer.turns == 30 and session.stop.set()))
        assert session.run() == "interrupted"
        yield session


def test_a_resumed_run_begins_new_episodes(interrupted):
    before = interrupted.trainer
    counted, begun = before.accounts.totals(), before.envs.get_progress()["episodes"].tolist()
    assert (before.accounts.open["length"] > 0).all()
    saved = checkpoint.load(interrupted.folder.checkpoints)
    assert set(saved.groups["envs"]) == {"over", "episodes", "roots", "steps"}
    session, _ = reopen(interrupted.folder.path, env=CONFIG.env)
    trainer = session.trainer
    try:
        assert (trainer.turns, trainer.accounts.totals()) == (30, counted)
        np.testing.assert_array_equal(trainer.row.observation["vector"], before.row.observation["vector"])
        trainer.turn()
        # The next episode of each, as Gymnasium starts it with that seed.
        assert trainer.row.is_first.all()
        alone = gymnasium.make("CartPole-v1")
        for env in range(2):
            seed = episode_seed(_seed(CONFIG.seed, "layouts"), env, begun[env] + 1)
            np.testing.assert_array_equal(trainer.row.observation["vector"][env], alone.reset(seed=seed)[0])
        assert trainer.accounts.totals() == counted
        assert trainer.accounts.open["length"].tolist() == [0, 0]
        assert trainer.accounts.open["start_frame"].tolist() == [counted["frames"]] * 2
        assert session.run() == "finished"
    finally:
        trainer.close()


def test_train_warns(tmp_path):
    config = changed(CONFIG, {"training": {"frames": 2, "envs": 1, "batch": 1, "prefill": 2}})
    with tiny_sizes(), pytest.warns(UserWarning, match="cartpole cannot be saved: .* begins new episodes"):
        ambs.train(config, tmp_path)
