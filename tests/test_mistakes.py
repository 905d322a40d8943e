"""Calls of the public API with what is no argument of theirs: each gets a sentence that says what would be right."""

import json
import subprocess
import sys

import pytest

SETTING = """
import fractions, ambs, ambs.statistics, gymnasium, jax, numpy
from ambs.acting.episodes import record_episodes
from ambs.acting.foreign import load_policy
from ambs.dynamics import Step
from ambs.envs import with_pictures
from ambs.report.summary import summarise
from ambs.shield import rule, shield, shield_with_deadline
from ambs.spec import bounds
from ambs.spec.sequential import betting_test
from ambs.storage.episodes import read_episode
from ambs.storage.run_folder import RunFolder
from ambs.training.offline import fit

psi, plain = ambs.parse_formula("!a"), gymnasium.make("Pendulum-v1")
blank = object.__new__(ambs.Agent)
odd = type("Odd", (), {"__repr__": lambda self: 1 / 0})()
move = lambda key, state, action: Step(state, jax.numpy.zeros((1, 1), bool), jax.numpy.array(True))
still = lambda key, state: jax.numpy.zeros(2)

def problem(**changes):
    good = dict(rollout_fn=ambs.rollout(move, 2), policy=still, backup=still, psi=psi, atoms=ambs.Atoms(("a",)))
    return ambs.ShieldProblem(**(good | {"config": ambs.ShieldConfig(horizon=2)} | changes))

def decide(**changes):
    good = dict(key=jax.random.key(0), state=numpy.zeros((1, 3)), proposed=numpy.zeros((1, 2)), problem=problem())
    return shield(**(good | {"labels_now": numpy.zeros((1, 1), bool)} | changes))
"""
"""What the calls speak of."""

TRY = """
import json, sys

def told(call):
    try:
        return f"{eval(call)!r} and no sentence"
    except ambs.UserError as error:
        return str(error)
    except Exception as error:
        return f"{type(error).__name__}: {error}"

print(json.dumps({call: told(call) for call in json.loads(sys.argv[1])}))
"""

MISTAKES = {
    "ambs.train('quickstart')": "train takes settings, such as ambs.resolve('quickstart') gives, not 'quickstart'",
    "ambs.load(3)": "load takes the path of a run folder, got 3",
    "ambs.make(None)": "an environment is meant by its name, such as 'PointGoal1', got None",
    "ambs.make_vector(None, 2)": "an environment is meant by its name, such as 'PointGoal1', or by a factory, got None",
    "ambs.make('PointWorld', observation='vector')": "ambs/PointWorld-v0 has no option 'observation'; it has ",
    "ambs.make('CartPole-v1', sutton_barto=True)": "CartPole-v1 has no option 'sutton_barto'; it has ",
    "gymnasium.register('Gone-v0', 'gone:Env') or ambs.make('Gone-v0')": (
        "Gone-v0 cannot be made here: No module named 'gone'"
    ),
    "ambs.train(ambs.resolve('quickstart'), out=3)": "out must be the path of a folder, got 3",
    "ambs.train(ambs.resolve('quickstart'), on_metrics='x')": "on_metrics must be a function that takes a row, got 'x'",
    "ambs.train(ambs.resolve('quickstart', changes={'training': {'frames': 600}}))": (
        "a prefill of 800 steps leaves nothing to learn in: 600 frames are 150 steps"
    ),
    "ambs.load('runs', env=3)": "env must be the run's environment as its name or module:factory, got 3",
    "ambs.resolve('quickstart', changes=[1])": "changes must be a mapping of settings, such as {'seed': 3}, got [1]",
    "ambs.resolve('quickstart', changes={3: 3})": "unknown setting '3'",
    "ambs.resolve('quickstart', changes={'psi': '((('})": "the formula ends too early",
    "ambs.resolve('quickstart', spec=3)": "a formula is written as text, such as '!hazard', got 3",
    "ambs.resolve('quickstart', say=3)": "say must be a function that takes a sentence, got 3",
    "ambs.ShieldConfig(horizon=2.5)": "horizon must be a whole number, got 2.5",
    "ambs.ShieldConfig(horizon=True)": "horizon must be a whole number, got True",
    "ambs.ShieldConfig(safety_level='.1')": "safety_level must be a number, got '.1'",
    "ambs.ShieldConfig(label_threshold='x')": "label_threshold must be a number or a list of numbers, got 'x'",
    "ambs.ShieldConfig(label_threshold=())": "label_threshold must lie in (0, 1], got ()",
    "ambs.ShieldConfig(check_initial='no')": "check_initial must be true or false, got 'no'",
    "ambs.SafetyConfig(cost=None)": "cost must be a number, got None",
    "ambs.Config(model=None)": "model must be a ModelConfig, got None",
    "ambs.Config(env=3)": "env must be text, got 3",
    "ambs.Config(obs='x')": "obs must be one of vision, vector, both, got 'x'",
    "ambs.Config(seed=1.5)": "seed must be a whole number, got 1.5",
    "ambs.TrainingConfig(frames=1e6)": "frames must be a whole number, got 1000000.0",
    "ambs.AgentConfig(lam=None)": "lam must be a number, got None",
    "ambs.ModelConfig(cost_head=numpy.zeros(2))": "cost_head must be one of labels, two_hot, got array([0., 0.])",
    "ambs.CalibrationConfig(every='x')": "every must be a whole number, got 'x'",
    "ambs.parse_formula(None)": "a formula is written as text, such as '!hazard', got None",
    "ambs.parse_property(b'!a')": "a formula is written as text, such as '!hazard', got b'!a'",
    "ambs.parse_formula('!h', atoms='h')": "atoms must be a sequence of names, such as ('hazard', 'collision'), got 'h'",
    "ambs.parse_formula('!h', atoms=3)": "atoms must be a sequence of names, such as ('hazard', 'collision'), got 3",
    "ambs.Atoms('hazard')": "atoms must be a tuple of names, such as ('hazard', 'collision'), got 'hazard'",
    "ambs.Atoms((1, 2))": "atom name 1 must be text, printable, not empty and without quotes",
    "ambs.bounded_safety('!a', .1, 3)": "psi must be a formula, such as ambs.parse_formula('!hazard') gives, got '!a'",
    "ambs.bounded_safety(psi, float('nan'), 3)": "the safety level Δ must be between 0 and 1, got nan",
    "ambs.bounded_safety(psi, .1, 2.5)": "the horizon n must be a whole number, got 2.5",
    "ambs.make('PointWorld', world=3)": "world must be a PointWorld, got 3",
    "ambs.make_vector('PointWorld', 2.5)": "num_envs must be a whole number from 1 to 1000000, got 2.5",
    "ambs.make_vector('PointWorld', 10**12)": "num_envs must be a whole number from 1 to 1000000, got 1000000000000",
    "ambs.make_vector('PointWorld', 1, spec=3)": "spec must be a formula over atoms such as '!hazard', got 3",
    "ambs.make_vector('PointWorld', 1).reset(seed='x')": (
        "a seed must be a whole number, None, or one of those for each environment, got 'x'"
    ),
    "ambs.with_labels(plain, labels=None, spec='!a')": "labels must be a function of observation and info, got None",
    "ambs.with_labels(plain, labels=lambda *_: {3}, spec='!a').reset()": "unknown atom 3; known atoms: a",
    "ambs.with_labels(plain, labels=set, spec=None)": "spec must be a formula over atoms such as '!hazard', got None",
    "ambs.with_labels(plain, labels=set, spec='!a', atoms=3)": (
        "atoms must be a sequence of names, such as ('hazard', 'collision'), got 3"
    ),
    "ambs.rollout(move, 0)": "the number of steps of a rollout must be a whole number from 1 to 100000, got 0",
    "ambs.rollout(None, 3)": "a rollout needs a function (key, state, action) -> Step, got None",
    "ambs.simulator_dynamics(None)": "a model is made of a gymnasium.Env, got None",
    "problem(policy=3)": "policy must be a function, got 3",
    "problem(psi='!hazard')": "psi must be of the type Formula, such as ambs.parse_formula('!hazard') gives, got '!hazard'",
    "problem(psi=ambs.parse_formula('!lava'))": "unknown atom 'lava'; known atoms: a",
    "problem(config=ambs.Config())": "config must be of the type ShieldConfig, got Config(",
    "problem(level=1.5)": "level must be the number of a level, got 1.5",
    "problem(fallback='stop')": "the fallback action must be finite, in single precision too, got stop",
    "problem(thresholds=numpy.ones(2))": "label thresholds must be 1 numbers in (0, 1], got [1. 1.]",
    "ambs.Shielded(None, problem())": "Shielded needs a gymnasium.Env, got None",
    "ambs.Shielded(plain, None)": "Shielded needs a ShieldProblem, got None",
    "ambs.Shielded(plain, problem(), seed=-1)": "seed must be a whole number from 0 to 9007199254740992, got -1",
    "ambs.Shielded(plain, problem(), read_state=None)": (
        "read_state must be a function of environment and observation, got None"
    ),
    "ambs.Shielded(ambs.make('PointWorld'), problem())": (
        "the shield's atoms must be the environment's, hazard, outside, and are a"
    ),
    "decide(key=3)": "key must be one key, such as jax.random.key(0), got 3",
    "decide(key=jax.random.split(jax.random.key(0)))": "key must be one key, such as jax.random.key(0), got Array((2,)",
    "decide(labels_now=numpy.zeros((2, 1), bool))": "labels_now must be 1 environments × 1 atoms, got shape (2, 1)",
    "decide(problem=problem(rollout_fn=lambda *_: None))": "rollout_fn must give an ambs.shield.Trace, got None",
    "decide(problem=problem(rollout_fn=ambs.rollout(lambda *_: 3, 2)))": "a model must give an ambs.dynamics.Step, got 3",
    "decide(problem=problem(rollout_fn=ambs.rollout(lambda k, s, a: move(k, s[:1], a), 2)))": (
        "a model must give states like those that it is given, arrays of shape (3,) in PyTreeDef(*), got arrays of shape (1,)"
    ),
    "ambs.ShieldConfig().at_level('x')": "safety_level must be a number, got 'x'",
    "ambs.ShieldConfig(safety_level=odd)": "safety_level must be a number, got <Odd instance at ",
    "ambs.ModelConfig(learning_rate=1e300)": "learning_rate must be finite in single precision, too, got 1e+300",
    "ambs.AgentConfig(imagination=10**9)": "imagination must be at most 100000, got 1000000000",
    "bounds.traces_needed('x', .01)": "the approximation error ε must be a number, got x",
    "bounds.accept_count(None, .09, 512)": "the safety level Δ must be a number, got None",
    "bounds.traces_needed(True, .01)": "the approximation error ε must be a number, got True",
    "bounds.safe_share_lower_bound(50, 'x', .1)": "the number of violating traces must be a number, got x",
    "bounds.safe_share_lower_bound(50, -1, .1)": "the number of violating traces must be a whole number from 0 to",
    "bounds.acceptance_probability(2, 5, 512)": "a probability must lie between 0 and 1, got 2",
    "bounds.binary_kl(.1, None)": "a probability must be a number, got None",
    "bounds.state_divergence_bound('x')": "a divergence must be a number, got x",
    "betting_test(.1, .09, .01, chunk='x')": "the cap of traces must be a positive multiple of the chunk, got",
    "ambs.bounded_safety(psi, fractions.Fraction(1, 10), 3)": "the safety level Δ must be between 0 and 1, got Fraction(1, 10)",
    "ambs.Atoms(('a',)).encode(numpy.zeros((2, 3)))": "unknown atom array(",
    "decide(state=numpy.array([None]))": "state and proposed must be numbers, got array([None], dtype=object) and array(",
    "ambs.statistics.mean_interval(['x'])": "values must be a list of numbers, got ['x']",
    "ambs.statistics.iqm(numpy.zeros((2, 3)))": "values must be a list of numbers, got [[",
    "ambs.statistics.share_interval(3, 2)": "successes and trials must be whole numbers, 0 ≤ successes ≤ trials > 0, got 3, 2",
    "summarise('runs')": "paths must be a list of run folders, such as ['runs'], got 'runs'",
    "summarise(['nowhere'])": "there is no nowhere",
    "summarise(['nowhere'], at='x')": "at must be a whole number, got 'x'",
    "read_episode(3)": "path must be the path of a file, got 3",
    "read_episode('nowhere.npz')": "nowhere.npz cannot be read: nowhere.npz: No such file",
    "RunFolder.open('nowhere')": "nowhere is not a run folder",
    "[*record_episodes(3, None, 'x', 1)]": "episodes are recorded in what ambs.make_vector gives, got 3",
    "[*record_episodes(ambs.make_vector('PointWorld', 1), still, 3, 1)]": "out must be the path of a folder, got 3",
    "load_policy(3)": "a policy is written module:factory or path/file.py:factory, got 3",
    "decide(proposed=None)": "proposed must be an array of actions, one for each environment, got None",
    "decide(state=None)": "state must have a leading axis of 1 environments throughout, got None",
    "decide(problem=None)": "a shield needs a ShieldProblem, got None",
    "decide(labels_now='x')": "labels_now must be truth values, got 'x'",
    "decide(active='no')": "active must be a truth value, or one for each of 1 environments, got 'no'",
    "decide(trusted=numpy.ones(4, bool))": "trusted must be a truth value, or one for each of 1 environments, got array(",
    "decide(memory=3)": "memory must be that of the decision before (Decision.memory) or None, got 3",
    "decide(problem=problem(policy=lambda *_: numpy.zeros(5)))": (
        "the policy must give actions of shape [(2,)], as those that are proposed, got [(5,)]"
    ),
    "decide(problem=problem(backup=lambda *_: None))": (
        "the backup policy must give actions of shape [(1, 2)], as those that are proposed, got []"
    ),
    "shield_with_deadline(problem(), 'x')": "a deadline must be above 0 seconds, got 'x'",
    "psi & 3": "a formula is made of formulas, such as parse_formula gives, got 3",
    "psi.holds('x', ambs.Atoms(('a',)))": "labels must be an array, got 'x'",
    "psi.holds(numpy.ones(1, bool), None)": "labels are read by their atoms, such as ambs.Atoms(('hazard',)), got None",
    "psi.probability(numpy.ones(3), ambs.Atoms(('a',)))": "probabilities must have a last axis of 1 atoms (a), got shape (3,)",
    "psi.holds_in(3)": "the atoms that hold must be a set of names, got 3",
    "ambs.Atoms(('a',)).encode('a')": "labels are encoded from a set of names, got 'a'",
    "ambs.Atoms(('a',)).decode([1, 2])": "labels must be 1 truth values, one for each atom, got [1, 2]",
    "ambs.make('PointWorld', render_mode=True)": "render_mode must be text or None, got True",
    "ambs.make('PointGoal1', observation=numpy.zeros(0))": "observation must be 'vision' or 'vector' or 'both', got array([]",
    "ambs.make('PointGoal1', collision=numpy.zeros(0))": 'collision must be "contact" or "stock", got array([]',
    "ambs.parse_formula('!a', atoms=numpy.array('a'))": "atoms must be a sequence of names, such as (",
    "ambs.make('PointGoal1', frame_skip=1.5)": "frame_skip must be a whole number of at least 1, got 1.5",
    "ambs.make('PointGoal1', view_size='big')": "view_size must be a whole number from 1 to 4096, got 'big'",
    "ambs.make_vector('PointWorld', 1).set_state(3)": "the state of SerialVectorEnv must be what get_state gave, got 3",
    "ambs.config.resolve.from_dict([])": "settings must be a mapping, such as to_dict gives, got []",
    "problem(psi=ambs.bounded_safety(psi, .1, 3))": "psi must be a formula over atoms, without P [ … ], got P>=0.9 [ G<=3 !a ]",
    "ambs.AgentConfig(penalty='x')": "penalty must be one of none, lag, penl, plpg, copt, got 'x'",
    "ambs.ShieldConfig(path='G<=3 hazard &')": "expected",
    "ambs.ShieldConfig(hold=10**12)": "hold must lie in [1, 100000], got 1000000000000",
    "ambs.TrainingConfig(capacity=10**14)": "capacity must be at most 10000000000, got 100000000000000",
    "ambs.evaluate(3)": "load takes the path of a run folder, got 3",
    "ambs.evaluate('run', make=3)": "make must be a function that makes an environment, or the name of one, got 3",
    "ambs.load('run', trust='no')": "trust must be true or false, got 'no'",
    "ambs.load('run', 'x')": "frames must be a whole number of at least 0, got 'x'",
    "ambs.load('run', 10**30)": "frames must be a whole number from 0 to 9007199254740992, got 1000000000000000000000000000000",
    "ambs.Agent(None, None, None)": "an agent comes from ambs.load(run); its settings must be a Config, got None",
    "ambs.Guard(None, still)": "a guard is made of an agent, such as ambs.load(run) gives, got None",
    "ambs.Guard(blank, still, limit_ms='x')": "limit_ms must be a number, got 'x'",
    "ambs.Guard(blank, still, seed='x')": "seed must be a whole number from 0 to 9007199254740992, got 'x'",
    "ambs.Guard(blank, still, deterministic='no')": "deterministic must be true or false or null, got 'no'",
    "ambs.Shielded(ambs.make('PointWorld'), still)": "Shielded needs a ShieldProblem, got <function",
    "ambs.ShieldedVector(None, None)": "ShieldedVector needs a gymnasium.vector.VectorEnv, got None",
    "ambs.ShieldedVector(ambs.make_vector('PointWorld', 1), still)": (
        "a guard is needed, such as ambs.load(run).guard(policy) gives, got <function"
    ),
    "ambs.train_shield(3, policy=still)": "train_shield takes a function that makes an environment, or the name of one, got 3",
    "ambs.train_shield('PointWorld', policy=still, out=3)": "out must be the path of a folder, got 3",
    "ambs.train_shield('PointWorld', policy=still, on_metrics=3)": "on_metrics must be a function that takes a row, got 3",
    "ambs.train_shield('PointWorld', policy=still, training=3, frames=9)": "training must be a group of settings, got 3",
    "ambs.train_shield('PointWorld', policy=still, frames=400)": "a prefill of",
    "ambs.train(ambs.resolve('quickstart', changes={'training': {'length': 1}}))": "length must be at least 2",
    "ambs.train(ambs.resolve('quickstart', changes={'calibration': {'context': 10**6}}))": "calibration.context and the shield's",
    "ambs.train(ambs.resolve('quickstart', changes={'shield': {'path': 'F<=3 goal'}}))": "policies are trained for G<=n alone",
    "fit(3)": "data must be a list of files of episodes, such as ['episode-000000.npz'], got 3",
    "fit('episode-000000.npz')": "data must be a list of files of episodes, such as ['episode-000000.npz'], got 'episode",
    "fit([3])": "data must be paths of files of episodes, and one of them is 3",
    "fit([], updates='x')": "updates must be a whole number of at least 1, got 'x'",
    "fit([], out=3)": "out must be the path of a folder, got 3",
    "with_pictures(plain, size=10**9)": "size must be a multiple of 16 pixels, 4096 at most, got 1000000000",
    "rule('x')": "a rule is that of a ShieldConfig, got 'x'",
    "ambs.make('PointWorld').unwrapped.set_state('x')": "the state of PointWorld must be what get_state gave, with ",
    "ambs.make('Grid').unwrapped.set_state({})": "the state of Grid must be what get_state gave, with cell, steps, rng, got {}",
    "ambs.make('PointWorld').unwrapped.step('x')": "an action of point_world is two finite numbers, got x",
    "ambs.make('Grid').unwrapped.step('x')": "an action of grid is a whole number from 0 to 4, got x",
    "ambs.make('Grid').unwrapped.step(1.5)": "an action of grid is a whole number from 0 to 4, got 1.5",
    "ambs.make_vector('PointWorld', 1).reset(options=3)": "options of a reset must be a mapping or None, got 3",
    "ambs.make_vector(lambda: plain, 1, serial='x')": "serial must be true or false, got 'x'",
    "ambs.SafetyConfig(cost=1e7)": "cost must be at most 1000000.0, got 10000000.0",
    "ambs.SafetyConfig(cost=1e308)": "cost must be finite in single precision, too, got 1e+308",
    "ambs.TrainingConfig(envs=10**7, capacity=10**12)": "envs must be at most 1000000, got 10000000",
}
"""Calls, and how the sentence begins that each gets."""


@pytest.mark.process
def test_mistakes_get_a_sentence():
    """In a process of its own, without the checks of annotations that are made in tests only."""
    code = [sys.executable, "-c", SETTING + TRY, json.dumps([*MISTAKES])]
    told = json.loads(subprocess.run(code, capture_output=True, text=True, check=True).stdout)
    wrong = {call: told[call] for call, wanted in MISTAKES.items() if not told[call].startswith(wanted)}
    assert not wrong, wrong
