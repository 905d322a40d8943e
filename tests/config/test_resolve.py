"""How settings combine, and what is said about bad ones."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from ambs.agent.penalties import PENALTIES
from ambs.cli.train import parse_train
from ambs.config import METHODS, PRESETS, Config, SafetyConfig
from ambs.config.presets import quickstart
from ambs.config.resolve import changed, from_dict, resolve, to_dict
from ambs.errors import UserError

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("semantics", ["corrected", "paper"])
@pytest.mark.parametrize("method", METHODS)
def test_every_combination_survives_json(preset, semantics, method):
    config = resolve(preset, semantics=semantics, method=method)
    assert from_dict(json.loads(json.dumps(to_dict(config)))) == config
    assert config.shielded == (method not in ("lag", "dreamer"))
    assert config.agent.penalty == {"ambs": "none", "dreamer": "none", "guard": "none"}.get(method, method)
    # In a file it is the same method, and what such a file makes can be given as one again.
    assert resolve(preset, changes={"method": method, "semantics": semantics}) == config
    assert resolve(preset, changes=json.loads(json.dumps(to_dict(config)))) == config


@pytest.mark.parametrize(
    ("asked", "changes", "words"),
    [
        (
            {},
            {"method": "lag", "agent": {"penalty": "copt"}},
            "method lag has the penalty lag, but agent.penalty is copt",
        ),
        ({}, {"agent": {"penalty": "lag"}}, "method copt has the penalty copt, but agent.penalty is lag"),
        ({"method": "copt"}, {"method": "lag"}, "method is asked to be copt, but .* method lag"),
        (
            {"semantics": "corrected"},
            {"semantics": "paper"},
            "semantics is asked to be corrected, but .* semantics paper",
        ),
        ({}, {"shield": {"semantics": "paper"}}, "semantics is corrected, but shield.semantics is 'paper'"),
        (
            {},
            {"safety": {"cost": 1.0}, "shield": {"cost": 2.0}},
            "safety.cost is 1.0, but shield.cost, its earlier name, is 2.0",
        ),
        ({}, {"method": "lag", "shielded": True}, "method lag .* shield off, but shielded is true: say --shield on"),
        ({"shield": "off"}, {"shielded": True}, "method copt .* shield off, but shielded is true"),
        ({}, {"shielded": False}, "method copt .* shield on, but shielded is false: say --shield off"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(asked, changes, words):
    with pytest.raises(UserError, match=words):
        resolve("quickstart", **asked, changes=changes)


def test_a_shield_that_is_asked_for_is_there():
    for shield, method in (("on", "lag"), ("off", "copt")):
        config = resolve("default", method=method, shield=shield)
        assert config.shielded == (shield == "on")
        assert resolve("default", shield=shield, changes=to_dict(config)) == config


def test_settings_of_another_method_than_they_say_cannot_be_made():
    with pytest.raises(UserError, match="method lag has the penalty lag"):
        Config(method="lag")
    with pytest.raises(UserError, match="method lag has the penalty lag"):
        from_dict({"method": "lag"})


def test_results_of_earlier_versions_load():
    """C, γ and the calibration had other homes, and semantics were named twice; nothing of what they say is lost."""
    files = sorted((ROOT / "results").rglob("config.json"))
    assert files
    for file in files:
        record = json.loads(file.read_text())
        config = record["config"]
        shield, agent, training = (config[name] for name in ("shield", "agent", "training"))
        shield.pop("semantics", None)
        if "safety" not in config:
            shield.pop("discount")
            config["safety"] = {"cost": shield.pop("cost"), "discount": agent.pop("discount")}
            names = {"calibrate_every": "every", "calibration_windows": "windows", "calibration_context": "context"}
            names |= {"false_flags": "false_flags", "false_alarms": "false_alarms"}
            config["calibration"] = {new: training.pop(old) for old, new in names.items() if old in training}
        loaded = to_dict(from_dict(json.loads(file.read_text())["config"]))
        for name, value in config.items():
            mine = loaded[name] if isinstance(value, dict) else {name: loaded[name]}
            assert (value if isinstance(value, dict) else {name: value}).items() <= _as_json(mine).items(), file
        assert loaded["method"] == record["method"]


def _as_json(value):
    return json.loads(json.dumps(value))


def test_the_registry_is_what_the_documentation_shows():
    assert {one.penalty for one in METHODS.values()} == set(PENALTIES)
    rows = re.findall(
        r"^\| `(\w+)` \| ([^|]+) \| (on|off) \|", (ROOT / "docs" / "methods.md").read_text(), re.MULTILINE
    )
    assert rows == [(name, one.title, "on" if one.shielded else "off") for name, one in METHODS.items()]


def test_the_papers_semantics_follow_its_code():
    config = resolve("paper-scale", semantics="paper", method="plpg")
    assert resolve("default", semantics="paper").model.label_scale == config.model.label_scale == 1.0
    assert config.agent.backup_norm_limit * config.safety.cost == config.agent.norm_limit == 1.0
    assert (config.training.batch, config.training.length) == (16, 64)
    assert (config.model.cost_head, config.agent.actor_grad, config.training.time_limit) == (
        "two_hot",
        "dynamics",
        "termination",
    )
    assert not config.agent.plpg_stop_gradient
    shield = config.shield
    assert (shield.rule, shield.labels, shield.rolled, shield.critics, shield.traces) == (
        "fixed",
        "mean",
        15,
        "min",
        512,
    )


def test_a_quarter_million_updates_for_a_million_frames():
    """The notes: train ratio 512 and batches of 1024 steps make .5 updates per agent step."""
    training = resolve("paper-scale").training
    assert training.updates_due(training.frames // training.action_repeat) == 250_000
    # 64 at first: 50 000 steps of it, then 450 000 at 512.
    early = replace(training, early_ratio=64.0, early_frames=100_000)
    assert early.updates_due(50_000) == 3125
    assert early.updates_due(training.frames // training.action_repeat) == 3125 + 225_000


def test_the_lagrangian_counts_violations():
    assert resolve("default", method="lag").safety.cost == 1.0


def test_a_property_sets_level_horizon_and_formula():
    config = resolve("default", spec="P>=0.95 [ G<=20 !(hazard | collision) ]")
    assert config.shield.safety_level == pytest.approx(0.05)
    assert config.shield.approximation_error == pytest.approx(0.045)
    assert (config.shield.horizon, config.psi) == (20, "!(hazard | collision)")


def test_a_property_leaves_the_margin_alone(capsys):
    """ε stays, unless it must be below Δ, which is said; who names another ε, in a file or by a flag, knows it already."""
    told: list[str] = []
    usual = quickstart().shield
    kept = resolve("quickstart", spec="P>=0.85 [ G<=3 !hazard ]", say=told.append).shield
    assert kept == replace(usual, safety_level=0.15)
    assert not told
    narrow = "P>=0.95 [ G<=3 !hazard ]"
    assert resolve("quickstart", spec=narrow, say=told.append).shield.approximation_error == 0.045
    assert told == ["ε must be below Δ = 0.05: it is 0.045 instead of 0.1"]
    resolve("quickstart", spec=narrow, changes={"shield": {"approximation_error": 0.04}}, say=told.append)
    assert len(told) == 1
    parse_train(["--preset", "quickstart", "--spec", narrow, "--shield.approximation-error", ".04"])
    assert not capsys.readouterr().err
    parse_train(["--preset", "quickstart", "--spec", narrow])
    assert capsys.readouterr().err == f"ambs: {told[0]}\n"


def test_what_is_asked_for_is_not_dropped_for_what_a_file_says():
    stored = to_dict(resolve("quickstart", spec="P>=0.6 [ G<=9 true ]"))
    config = resolve("quickstart", spec="P>=0.9 [ G<=7 !hazard ]", changes=stored)
    assert (config.shield.safety_level, config.shield.horizon, config.psi) == (pytest.approx(0.1), 7, "!hazard")


def test_a_formula_alone_sets_psi_alone():
    assert resolve("quickstart", spec="not hazard") == replace(quickstart(), psi="!hazard")
    with pytest.raises(UserError, match="without P"):
        resolve(spec="!hazard & P>=0.9 [ G<=3 !hazard ]")


def test_one_name_on_the_command_line_for_one_thing(capsys):
    """--psi and --shielded are taken as ever, and only --spec and --shield are shown."""
    assert parse_train(["--psi", "!hazard"]).settings == parse_train(["--spec", "!hazard"]).settings
    assert parse_train(["--no-shielded"]).settings == parse_train(["--shield", "off"]).settings
    with pytest.raises(UserError, match="--spec is said to be !hazard and !vase: say it once"):
        parse_train(["--spec", "!hazard", "--psi", "!vase"])
    with pytest.raises(SystemExit):
        parse_train(["--help"])
    shown = capsys.readouterr().out
    assert "--spec" in shown
    assert "--shield {" in shown
    assert "--psi" not in shown
    assert "shielded" not in shown.replace("unshielded", "")


@pytest.mark.parametrize("text", ["P>=0.9 [ F<=30 hazard ]", "P=? [ G<=30 !hazard ]", "P>=0.9 [ G !hazard ]"])
def test_other_properties_are_refused(text):
    with pytest.raises(UserError, match="must have the form"):
        resolve("default", spec=text)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"safety": {"discont": 0.9}}, "unknown setting 'safety.discont'; did you mean 'discount'"),
        ({"agent": 3}, "agent must be a group"),
        ({"safety": {"discount": "high"}}, "safety.discount must be a number, got 'high'"),
        ({"training": {"envs": True}}, "training.envs must be a whole number"),
        ({"training": {"envs": 0}}, "envs must be at least 1"),
        ({"method": "ppo"}, "method must be one of dreamer, lag"),
        ({"model": {"size": "xxl"}}, "model.size must be one of xxs"),
        ({"seed": -1}, "seed must be at least 0"),
        ({"model": {"open_loop": 16}}, "model.open_loop must be below training.length, 16 steps, got 16"),
        (
            {"training": {"batch": 10**9}},
            "a batch of 1000000000 sequences can never be filled: 1000000 frames are 500000",
        ),
    ],
)
def test_bad_settings_get_a_sentence(changes, words):
    with pytest.raises(UserError, match=words):
        changed(Config(), changes)


def test_numbers_and_lists_are_taken_as_meant():
    config = changed(Config(), {"agent": {"entropy": 1}, "shield": {"label_threshold": [0.2, 0.3]}})
    assert config.agent.entropy == 1.0
    assert config.shield.label_threshold == (0.2, 0.3)


def test_a_run_from_before_a_setting_goes_on_as_it_began():
    """The least range of the backup policy's returns was that of all others, and the way out of a hazard was drawn; who asked to
    imagine beyond the end of a sequence was taken to its end."""
    stored = to_dict(resolve("default"))
    stored["model"]["open_loop"] = 100
    del stored["agent"]["backup_norm_limit"], stored["shield"]["leave"]
    found = from_dict(stored)
    assert found.agent.backup_norm_limit * found.safety.cost == pytest.approx(found.agent.norm_limit)
    assert found.shield.leave == "sample"
    assert found.model.open_loop == found.training.length - 1
    assert from_dict(to_dict(resolve("default"))) == resolve("default")


def test_earlier_names_are_taken_as_todays():
    """In a file and on the command line; of two discounts the agent's counts, with which its critics learned."""
    earlier = {"agent": {"discount": 0.9}, "shield": {"discount": 0.8, "cost": 2.0, "horizon": 6}}
    earlier |= {"training": {"calibrate_every": 7, "calibration_windows": 8, "calibration_context": 9, "frames": 5000}}
    flags = ["--shield.cost=2", "--agent.discount", ".9", "--training.calibrate_every", "7"]
    flags += ["--training.calibration-windows=8", "--training.calibration-context", "9"]
    flags += ["--shield.horizon", "6", "--frames", "5000"]
    for found in (resolve("quickstart", changes=earlier), parse_train(["--preset", "quickstart", *flags]).settings):
        assert found.safety == SafetyConfig(cost=2.0, discount=0.9)
        assert found.calibration == replace(quickstart().calibration, every=7, windows=8, context=9)
        assert (found.shield.horizon, found.training.frames) == (6, 5000)
    assert parse_train(["--gamma", ".5"]).settings.safety.discount == 0.5
    assert resolve(changes={"shield": {"discount": 0.8}}).safety.discount == 0.8
