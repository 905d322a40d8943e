"""Copies of one environment, in this process and in others: the same contract, also when something breaks."""

import multiprocessing
import os
import re
import signal
import time

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from ambs.envs import TooManyFaults, make, make_vector, with_labels
from ambs.envs.vector.replicas import LastSound, Unsound
from ambs.errors import UserError
from tests.envs.counting import counting

OTHERS = pytest.param(False, id="processes", marks=pytest.mark.process)
EVERYWHERE = pytest.mark.parametrize("serial", [pytest.param(True, id="serial"), OTHERS])


def step(envs, action=0.0):
    """The counts, and all else."""
    observations, *rest = envs.step(np.full((envs.num_envs, 1), action))
    counts = observations["count"][:, 0].astype(int).tolist()
    assert (observations["picture"][:, 0, 0, 0] == np.array(counts) % 200).all()
    return counts, *rest


@EVERYWHERE
def test_frames_are_accounted_for_and_episodes_start_anew(serial):
    envs = make_vector(counting(), 2, action_repeat=3, serial=serial)
    observations, infos = envs.reset(seed=[1, 2])
    assert observations["count"].tolist() == [[100, 0], [200, 0]]
    assert infos["labels"].tolist() == [[True, False], [True, False]]
    counts, rewards, _, _, infos = step(envs)
    assert counts == [103, 203]
    assert rewards.tolist() == [101 + 102 + 103, 201 + 202 + 203]
    assert infos["frame_violations"].tolist() == [[False, True, False]] * 2
    assert step(envs)[0] == [106, 206]
    counts, _, _, truncated, infos = step(envs)
    assert counts == [108, 208]
    assert truncated.all()
    assert infos["frame_valid"].tolist() == [[True, True, False]] * 2
    assert infos["labels"].tolist() == [[True, False], [True, True]]
    assert infos["episode"].tolist() == [0, 0]
    _, rewards, _, truncated, infos = step(envs)
    assert infos["fresh"].all()
    assert infos["episode"].tolist() == [1, 1]
    assert not infos["frame_valid"].any()
    assert not rewards.any()
    assert not truncated.any()
    envs.close()


@EVERYWHERE
def test_another_formula_over_the_same_atoms(serial):
    envs = make_vector(counting(), 1, spec="!(even & big)", action_repeat=4, serial=serial, observation="vision")
    envs.reset(seed=[2])
    costs = [step(envs)[-1]["frame_violations"][0].tolist() for _ in range(2)]
    assert costs == [[False] * 4, [False, True, False, True]]
    envs.close()
    with pytest.raises(UserError, match="unknown atom 'odd'; known atoms: even, big"):
        make_vector(counting(), 1, spec="odd", serial=serial)


@EVERYWHERE
def test_episodes_start_alike_whatever_was_done_before(serial):
    """Episode k of environment i starts from the documented seed, in runs whose episodes have other lengths."""
    envs = make_vector(counting(), 2, serial=serial)
    starts = []
    for patience in (1, 3):
        observations, _ = envs.reset(seed=7)
        found = {(env, 0): observations["count"][env, 0] for env in range(2)}
        for number in range(12):
            # The second environment ends every episode at once, the first one after some steps.
            ends = np.array([[float(number % patience == patience - 1)], [1.0]])
            observations, _, _, _, infos = envs.step(ends)
            for env in np.flatnonzero(infos["fresh"]).tolist():
                found[env, int(infos["episode"][env])] = observations["count"][env, 0]
        starts.append(found)
    envs.close()
    assert len(starts[1]) < len(starts[0])
    for (env, episode), start in (starts[0] | starts[1]).items():
        seed = int(np.random.SeedSequence([7, env, episode]).generate_state(1)[0]) // 2
        assert start == np.random.default_rng(seed).integers(1000)


CRASH = ("crash", r"ValueError in a step: broken on purpose \(counting.py, line \d+\)")
NAN = ("nan", "the count is not finite in a step")


@pytest.mark.parametrize(
    ("serial", "trouble", "reason"),
    [
        (True, *CRASH),
        (True, *NAN),
        (True, "reward", "the reward is not finite, in single precision in a step"),
        (True, "large", "the reward is not finite, in single precision in a step"),
        (True, "masked", "entries of the count are masked in a step"),
        (True, "shape", r"the count must have shape \(2,\), got \(1,\) in a step"),
        pytest.param(False, *CRASH, marks=pytest.mark.process),
        pytest.param(False, *NAN, marks=pytest.mark.process),
        pytest.param(
            False, "interrupt", "RuntimeError in a step: KeyboardInterrupt: on purpose", marks=pytest.mark.process
        ),
        pytest.param(False, "exit", "RuntimeError in a step: SystemExit: on purpose", marks=pytest.mark.process),
        pytest.param(
            False, "hang", "no answer to a step within 1 s; the worker was replaced", marks=pytest.mark.process
        ),
    ],
)
def test_a_broken_copy_is_replaced_while_the_others_go_on(serial, trouble, reason):
    envs = make_vector(counting(trouble), 2, action_repeat=3, serial=serial)
    envs.reset(seed=[1, 2])
    # A map that fails is no fault, and no map.
    assert {index: found.robot[0] for index, found in envs.scenes([0, 1]).items()} == {1: 200}
    envs.timeout = 1.0
    assert step(envs)[0] == [103, 203]
    start = time.monotonic()
    counts, rewards, terminated, truncated, infos = step(envs)
    assert time.monotonic() - start < 10
    (fault,) = infos["faults"]
    assert (fault.env, fault.step) == (1, 2)
    assert re.search(reason, fault.reason), fault.reason
    assert truncated.tolist() == [False, True]
    assert not terminated.any()
    # The frame before the fault counts, unless nothing can be heard of it any more.
    heard = trouble != "hang"
    assert counts == [106, 204 if heard else 203]
    assert rewards.tolist() == [104 + 105 + 106, 204 * heard]
    assert infos["frame_valid"].tolist() == [[True, True, True], [heard, False, False]]
    assert infos["labels"][1].tolist() == [heard, False]
    envs.timeout = 20.0
    # Nothing can be seen of what was thrown away.
    assert {index: found.robot[0] for index, found in envs.scenes([0, 1]).items()} == {0: 106}
    assert {index: found[0, 0, 0] for index, found in envs.pictures([0, 1]).items()} == {0: 106}
    counts, _, _, _, infos = step(envs)
    assert counts[0] == 108
    assert infos["fresh"].tolist() == [False, True]
    assert infos["episode"].tolist() == [0, 1]
    assert step(envs)[0][1] == counts[1] + 3
    envs.close()


def test_too_many_faults_stop_the_run():
    envs = make_vector(counting("crash"), 2, serial=True, max_faults=1)
    envs.reset(seed=[2, 2])
    for _ in range(4):
        step(envs)
    with pytest.raises(TooManyFaults, match=r"2 faults, and max_faults is 1; .*environment 0, step 5: ValueError"):
        step(envs)


def test_a_copy_that_cannot_be_made_again_is_a_fault_of_every_step():
    made = []

    def factory():
        made.append(counting("crash")())
        if len(made) == 4:
            raise OSError("no more of them")
        return made[-1]

    envs = make_vector(factory, 2, serial=True)
    envs.reset(seed=[1, 2])
    for _ in range(5):
        step(envs)
    assert len(made) == 3
    counts, _, _, truncated, infos = step(envs)
    assert counts == [106, 204]
    assert infos["fresh"].tolist() == truncated.tolist() == [False, True]
    assert "OSError in the making of an environment: no more of them" in str(infos["faults"][0])
    *_, truncated, infos = step(envs)
    assert not truncated.any()
    assert infos["fresh"].tolist() == [False, True]
    assert infos["episode"].tolist() == [0, 2]


@EVERYWHERE
def test_a_saved_state_goes_on_as_if_nothing_had_happened(serial):
    envs, other = (make_vector(counting("crash", saves=True), 2, serial=serial) for _ in range(2))
    envs.reset(seed=[1, 2])
    other.reset(seed=5)
    for _ in range(5):
        seen = step(envs)[0]
    # The second copy has been thrown away and not been made again.
    saved = envs.get_state()
    assert saved["over"].tolist() == [False, True]
    assert "1.count" not in saved
    assert all(isinstance(part, np.ndarray) for part in saved.values())
    assert other.set_state(saved)["count"][:, 0].tolist() == seen
    for _ in range(4):
        one, two = step(envs), step(other)
        assert one[0] == two[0]
        for name in ("labels", "frame_rewards", "fresh", "episode"):
            np.testing.assert_array_equal(one[-1][name], two[-1][name])
    del saved["0.count"]
    with pytest.raises(UserError, match="the state says nothing of environment 0"):
        other.set_state(saved)
    with pytest.raises(UserError, match="state field 'over' must have shape"):
        other.set_state({})
    envs.close()
    other.close()


@pytest.mark.filterwarnings("ignore:.*Worker-0")  # Gymnasium tells it too.
@EVERYWHERE
def test_a_copy_that_cannot_tell_its_state_is_replaced(serial):
    """Its episode ends with the next step, where the run goes on and where the saved state does alike."""
    envs, other = (make_vector(counting("mute", saves=True), 2, serial=serial) for _ in range(2))
    try:
        envs.reset(seed=[1, 2])
        for _ in range(3):
            step(envs)
        saved = envs.get_state()
        assert saved["unsaved"].tolist() == [False, True]
        assert "ZeroDivisionError" in envs.unsaved[1]
        assert envs.get_state()["unsaved"].tolist() == [False, True]
        other.set_state(saved)
        for vector in (envs, other):
            counts, rewards, terminated, truncated, infos = step(vector)
            # 203 is the last that was sound.
            assert (counts, rewards.tolist()) == ([104, 203], [104, 0])
            assert (terminated.tolist(), truncated.tolist()) == ([False, False], [False, True])
            assert [fault.env for fault in infos["faults"]] == [1]
        ends = [step(vector) for vector in (envs, other)]
        assert ends[0][0] == ends[1][0]
        assert ends[0][-1]["fresh"].tolist() == [False, True]
        assert not envs.get_state()["unsaved"].any()
    finally:
        envs.close()
        other.close()


def test_what_cannot_be_saved_says_so():
    envs = make_vector(counting(), 1, serial=True)
    envs.reset(seed=0)
    with pytest.raises(UserError, match="cannot be saved: it has no get_state and set_state"):
        envs.get_state()


@pytest.mark.process
def test_a_factory_may_be_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "my_small_world.py").write_text(
        "import gymnasium\nimport ambs.envs\n"
        "def mine():\n    return ambs.envs.make('Grid')\n"
        "def bare():\n    return gymnasium.make('CartPole-v1')\n"
        "def other():\n    return 3\n"
        "def raises():\n    raise ValueError('no map')\n"
        "def exits():\n    raise SystemExit(4)\n"
    )
    (tmp_path / "my_misspelt_world.py").write_text("def mine(:\n")
    (tmp_path / "my_script.py").write_text("import sys\nsys.exit(3)\n")
    envs = make_vector("my_small_world:mine", 1, observation="vector")
    assert envs.reset(seed=[3])[0].shape == (1, 25)
    alone = make("Grid")
    alone.reset(seed=3)
    np.testing.assert_array_equal(envs.step(np.array([1]))[0][0], alone.step(1)[0])
    envs.close()
    for name, message in [
        ("no_such_world:mine", "module 'no_such_world' cannot be imported"),
        ("my_small_world:yours", "module 'my_small_world' has no function 'yours'"),
        ("my_small_world:", "written module:factory"),
        ("my_small_world:bare", r"has no labels: give it some by ambs\.envs\.with_labels"),
        ("my_small_world:other", r"must return a gymnasium\.Env, and returned int"),
        (
            "my_small_world:raises",
            r"could not be made: ValueError in its factory: no map \(my_small_world.py, line 10\)",
        ),
        ("my_small_world:exits", r"could not be made: SystemExit in its factory: 4"),
        ("my_misspelt_world:mine", r"module 'my_misspelt_world' cannot be imported: SyntaxError"),
        ("my_script:mine", r"module 'my_script' cannot be imported: SystemExit: 3"),
    ]:
        with pytest.raises(UserError, match=message):
            make_vector(name, 1)


def test_observations_that_no_learner_takes_are_refused():
    class Odd(gymnasium.Env):
        action_space = observation_space = gymnasium.spaces.Discrete(2)

    def factory():
        return with_labels(Odd(), labels=lambda *_: set(), spec="true", atoms=("any",))

    with pytest.raises(UserError, match=r"observations must be a vector, a picture .*, got Discrete\(2\)"):
        make_vector(factory, 1)


@pytest.mark.process
@pytest.mark.parametrize("seen", [np.nan, 300.7, -1, 256])
def test_what_does_not_fit_into_pixels_is_not_kept(seen):
    shown = LastSound(spaces.Box(0, 255, (2, 2, 3), np.uint8), 1, 1)
    shown.keep(0, np.full((2, 2, 3), 7.0), np.zeros(1, bool))
    with pytest.raises(Unsound):
        shown.keep(0, np.full((2, 2, 3), seen), np.zeros(1, bool))
    assert (shown.observations() == 7).all()


def test_signals_to_the_whole_group_leave_workers_able_to_tell_their_state():
    envs = make_vector(counting(saves=True), 2, serial=False)
    try:
        envs.reset(seed=[1, 2])
        envs.step(np.zeros((2, 1)))
        before = envs.get_state()
        for worker in multiprocessing.active_children():
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                os.kill(worker.pid, number)
        time.sleep(0.2)
        after = envs.get_state()
        assert before.keys() == after.keys()
        for name, value in before.items():
            np.testing.assert_array_equal(after[name], value)
    finally:
        envs.close()
