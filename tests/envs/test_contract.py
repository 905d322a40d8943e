"""Environments that break the contract in one way each, and one that keeps it."""

import re

import gymnasium
import numpy as np
import pytest

from ambs.acting.adapter import interface
from ambs.cli.check_env import CheckEnv
from ambs.config.resolve import resolve
from ambs.envs import make, make_vector
from ambs.envs.contract import load_factory, walk
from ambs.errors import UserError
from ambs.spec import Atoms, parse_formula


class Walk(gymnasium.Env):
    """A walk on the line; subclasses break something."""

    atoms, psi = Atoms(("far",)), parse_formula("!far")
    observation_space = gymnasium.spaces.Box(-100, 100, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    dtype, leak = np.float32, 0.0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed, options=options)
        self.place = float(self.np_random.uniform(-1, 1))
        return self.seen(), self.info()

    def step(self, action):
        self.place += 2.0 * action - 1.0
        return self.seen(), self.reward(), False, False, self.info()

    def seen(self):
        return np.array([self.place], self.dtype)

    def reward(self):
        return 1.0

    def info(self):
        far = abs(self.place) > 2
        return {"labels": np.array([far]), "cost": float(far)}

    def get_state(self):
        return {"place": np.array(self.place)}

    def set_state(self, state):
        self.place = float(state["place"]) + self.leak


def broken(**changes):
    return type("Broken", (Walk,), changes)


def pictures(shape, dtype=np.uint8):
    space = gymnasium.spaces.Box(0, 255 if dtype is np.uint8 else 1, shape, dtype)
    return broken(observation_space=space, seen=lambda _: np.zeros(shape, dtype))


CLOCK = iter(range(10_000))
CASES = {
    "atoms and Ψ": [
        (broken(atoms=None), "'atoms' must be of the type Atoms"),
        (broken(psi=parse_formula("!near")), "Ψ speaks of near, and the atoms are far"),
    ],
    "spaces": [
        (broken(action_space=None), "action_space must be a gymnasium space"),
        (broken(dtype=np.float64), "reset must return an observation of .*dtype float32, got .*dtype float64"),
        (broken(reward=lambda _: np.nan), "the reward must be a finite number, got nan"),
        (broken(step=lambda self, _: (self.seen(), 0.0, False, self.info())), "step must return"),
        (broken(step=lambda self, _: (self.seen(), 0.0, 0, False, self.info())), "terminated must be a bool, got int"),
        (broken(reset=lambda *_, **__: np.zeros(1)), "reset must return the pair"),
    ],
    "labels and cost": [
        (broken(info=lambda _: {}), 'info\\["labels"\\] is missing after reset'),
        (broken(info=lambda _: {"labels": np.zeros(1), "cost": 0.0}), "must be a bool array of shape \\(1,\\)"),
        (broken(info=lambda _: {"labels": np.array([True]), "cost": 0.0}), 'info\\["cost"\\] must be 1.0 after reset'),
    ],
    "what is learned from": [
        (pictures((64, 64, 3), np.float32), r"Box.*float32\); scale it to 0 … 255 as uint8: ambs.envs.with_pictures"),
        (pictures((3, 64, 64)), r"transpose it to \[height, width, channel\]: ambs.envs.with_pictures\(env\) does"),
        (pictures((84, 84)), "repeat its one channel three times: ambs.envs.with_pictures"),
        (pictures((1, 84, 84), np.float32), r"transpose it .*, repeat its one .*, scale it to 0 … 255 as uint8: ambs"),
        (pictures((84, 84, 3)), r"a multiple of 16 pixels, got 84 × 84; resize them: ambs.envs.with_pictures\(env"),
        (pictures((64, 96, 3)), "pictures must be square, .* got 64 × 96; resize them"),
        (broken(fallback_action=2), "fallback_action must be one of the 2 actions, got 2"),
        (
            pictures((84, 84, 4)),
            "a picture has 1, 3 or 6 channels; gymnasium.wrappers.FlattenObservation makes a vector of it",
        ),
        (
            broken(action_space=gymnasium.spaces.Box(-np.inf, np.inf, (2,)), step=lambda self, _: Walk.step(self, 0)),
            "actions must be discrete, or a vector with finite bounds; .*TransformAction can make such",
        ),
        (
            broken(action_space=gymnasium.spaces.Discrete(2, start=1)),
            r"counted from 0, .*action \+ 1, Discrete\(2\)\) does",
        ),
    ],
    "determinism": [(broken(reward=lambda _: float(next(CLOCK))), "differ at step 1")],
    "save and restore": [
        (broken(leak=0.5), "goes another way, first seen after 1 steps"),
        (broken(set_state=property()), "it has no set_state"),
    ],
    "Gymnasium's checker": [(broken(reset=lambda self, seed=None: Walk.reset(self, seed=seed)), "options")],
}


def test_a_sound_environment_passes():
    findings = list(walk(Walk))
    assert [finding.check for finding in findings] == list(CASES)
    assert [finding.problem for finding in findings] == [""] * len(findings)


@pytest.mark.parametrize("name", ["PointGoal2", "CarGoal1"])
def test_our_own_pass(name):
    assert all(finding.ok for finding in walk(lambda: make(name, observation="vector")))


@pytest.mark.parametrize(
    ("check", "env", "problem"), [(check, *case) for check, cases in CASES.items() for case in cases]
)
def test_each_breach_is_explained(check, env, problem):
    findings = {finding.check: finding for finding in walk(env)}
    failed = [finding.check for finding in findings.values() if not finding.ok]
    assert failed[0] == check
    assert len(failed) == 1 or check == "determinism", "only where chance comes in, other checks fail too"
    assert re.search(problem, findings[check].problem), findings[check].problem
    if check == "what is learned from":
        with pytest.raises(UserError) as refused:  # As `ambs train` does.
            interface(make_vector(env, 1, serial=True), resolve("quickstart"))
        assert str(refused.value) == findings[check].problem


def test_what_cannot_be_saved_is_remarked_on():
    env = broken(get_state=property(), set_state=property())
    remarks = {finding.check: finding.remark for finding in walk(env)}
    assert remarks.pop("save and restore") == "it has no get_state and set_state, so a resumed run begins new episodes"
    assert not any(remarks.values())


def test_what_the_factory_makes_must_be_an_environment():
    (finding,) = walk(lambda: 3)
    assert "the factory must return a gymnasium.Env, and returned int" in finding.problem


def test_factories_are_found_in_the_current_folder(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "my_little_world.py").write_text(
        "from ambs.envs import make\ndef mine():\n    return make('PointGoal0', observation='vector')\n"
        "def other():\n    return None\n"
    )
    assert CheckEnv("my_little_world:mine").run() == 0
    assert CheckEnv("my_little_world:other").run() == 1
    printed = capsys.readouterr().out
    assert "ok      determinism" in printed
    assert "FAILED  atoms and Ψ: the factory must return" in printed
    for name, message in [
        ("my_little_world", "written module:factory"),
        ("no_such_world:mine", "module 'no_such_world' cannot be imported"),
        ("my_little_world:yours", "has no function 'yours'"),
    ]:
        with pytest.raises(UserError, match=message):
            load_factory(name)
