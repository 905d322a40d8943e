"""Seeds that are trained together: each is the run that it would have been alone, whatever befalls the others."""

import types

import numpy as np
import pytest

from ambs.cli import train
from ambs.config.resolve import changed, resolve
from ambs.config.seeds import check_fleet, parse_seeds
from ambs.errors import RunError, UserError
from ambs.storage import checkpoint
from ambs.storage.run_folder import RunFolder, read_rows
from ambs.training import fleet as fleets
from ambs.training import together
from ambs.training.asking import Learn
from ambs.training.fleet import Fleet, reopen_fleet, start_fleet
from ambs.training.observers import Observer
from ambs.training.session import Session, reopen, start
from tests.tiny import tiny_sizes

CONFIG = resolve(
    "quickstart",
    method="copt",
    changes={
        "env": "ambs/Grid-v0",
        "agent": {"imagination": 3, "imagine_from": 16},
        "shield": {"horizon": 4},
        "training": {
            "frames": 800, "envs": 4, "action_repeat": 1, "prefill": 200, "batch": 4, "length": 8, "train_ratio": 4.0,
            "updates_per_call": 2, "log_every": 200, "checkpoint_every": 0, "capacity": 800, "max_skipped": 6,
        },
        "calibration": {"every": 40, "windows": 256},
    },
)  # fmt: skip
SEEDS = (3, 0, 5)
POISONED = 1
"""Number of the member whose rewards are spoilt after a while."""


@pytest.fixture(scope="module", autouse=True)
def small():
    """What is shown here is the same for networks of any size."""
    with tiny_sizes():
        yield


@pytest.fixture(scope="module")
def alone(small, tmp_path_factory) -> Fleet:
    """The seeds side by side, each computed for by itself."""
    fleet = start_fleet(CONFIG, SEEDS, tmp_path_factory.mktemp("alone"), command=[], mapped=False)
    assert fleet.run() == ["finished"] * 3
    return fleet


@pytest.fixture(scope="module")
def mapped(small, tmp_path_factory) -> tuple[Fleet, list]:
    """The seeds computed for together, stopped on the way and resumed; one is spoilt near the end."""
    fleet = start_fleet(CONFIG, SEEDS, tmp_path_factory.mktemp("mapped"), command=[], mapped=True)
    first = fleet.sessions[0]
    first.watched_by(Observer(turn=lambda trainer: trainer.turns == 120 and first.stop.set()))
    assert fleet.run() == ["interrupted"] * 3
    assert [one.trainer.updates > 0 for one in fleet.sessions] == [True] * 3
    fleet = reopen_fleet([one.folder.path for one in fleet.sessions], mapped=True)

    def spoil(trainer):
        if trainer.turns == 150:
            trainer.replay.data.reward[:] = np.nan

    fleet.sessions[POISONED].watched_by(Observer(turn=spoil))
    return fleet, fleet.run()


def rows_of(session, name):
    """Without what depends on the clock."""
    rows = read_rows(session.folder.path / name)
    return [{key: value for key, value in row.items() if not key.startswith("time")} for row in rows]


@pytest.mark.learns
def test_a_fleet_of_one_is_a_plain_run_bit_for_bit(alone, tmp_path):
    plain = start(changed(CONFIG, {"seed": SEEDS[0]}), tmp_path / "plain", command=[])
    plain.run()
    one = start_fleet(CONFIG, SEEDS[:1], tmp_path / "one", command=[], mapped=True)
    assert one.run() == ["finished"]
    mine = checkpoint.load(plain.folder.checkpoints)
    for session in (*one.sessions, alone.sessions[0]):
        theirs = checkpoint.load(session.folder.checkpoints)
        for group, arrays in mine.groups.items():
            for name, array in arrays.items():
                np.testing.assert_array_equal(array, theirs.groups[group][name], err_msg=f"{group}/{name}")
        for name in ("metrics.jsonl", "episodes.jsonl"):
            assert rows_of(plain, name) == rows_of(session, name)
        assert session.folder.record["config"] == plain.folder.record["config"]


@pytest.mark.learns
def test_members_of_a_fleet_are_what_they_are_alone(alone, mapped):
    """The same decisions throughout, and parameters to rounding; stopping and resuming does not show."""
    fleet, endings = mapped
    for number, (one, other) in enumerate(zip(alone.sessions, fleet.sessions, strict=True)):
        episodes = rows_of(one, "episodes.jsonl")
        assert len(episodes) >= 5
        if number == POISONED:
            before = [row for row in episodes if row["frames"] < 600]
            assert rows_of(other, "episodes.jsonl")[: len(before)] == before
            continue
        assert endings[number] == "finished"
        assert rows_of(other, "episodes.jsonl") == episodes
        mine, theirs = (checkpoint.load(each.folder.checkpoints) for each in (one, other))
        for name, array in mine.groups["learned"].items():
            np.testing.assert_allclose(theirs.groups["learned"][name], array, rtol=1e-3, atol=1e-4, err_msg=name)
        last, same = (rows_of(each, "metrics.jsonl")[-1] for each in (one, other))
        assert set(last) == set(same)
        np.testing.assert_allclose(same["model/total"], last["model/total"], rtol=1e-3)
        assert mine.meta["calibrated"] == theirs.meta["calibrated"] >= 40
        np.testing.assert_array_equal(mine.groups["memory"]["level"], theirs.groups["memory"]["level"])
    # Not alike among themselves.
    assert rows_of(alone.sessions[0], "episodes.jsonl") != rows_of(alone.sessions[2], "episodes.jsonl")


@pytest.mark.learns
def test_nothing_is_compiled_twice(mapped):
    assert together.compiled_act(fleets.without_seed(CONFIG), True)._cache_size() == 1
    assert together.compiled_learn(fleets.without_seed(CONFIG), None)._cache_size() == 1


@pytest.mark.learns
def test_one_that_diverges_ends_alone(mapped):
    fleet, endings = mapped
    assert isinstance(endings[POISONED], RunError)
    assert "had a non-finite loss or gradient" in str(endings[POISONED])
    path = fleet.sessions[POISONED].folder.path
    assert f"is whole: ambs resume {path}" in str(endings[POISONED])
    states = [RunFolder.open(one.folder.path).read_status()["state"] for one in fleet.sessions]
    assert states == ["finished", "failed", "finished"]
    # What is left of it goes on by itself, from where the fleet was stopped.
    again, _ = reopen(path)
    assert 120 <= again.trainer.turns < 125  # Who has begun more episodes has made more turns.
    again.trainer.turn()
    again.folder.close()
    again.trainer.close()


@pytest.mark.learns
def test_what_cannot_go_on_together_is_refused(mapped, tmp_path):
    fleet, _ = mapped
    paths = [one.folder.path for one in fleet.sessions]
    with pytest.raises(UserError, match="is named twice"):
        reopen_fleet([paths[0], paths[0]])
    with pytest.raises(UserError, match="is finished"):
        reopen_fleet([paths[0], paths[2]])
    going = reopen_fleet([paths[0], paths[POISONED], paths[2]])
    assert [one.folder.path for one in going.sessions] == [paths[POISONED]]
    assert len(going.notes) == 2
    going.abandon()
    other = RunFolder.create(tmp_path, env="x", method="m", seed=1, config=resolve_with_batch(8, fleet), command=[])
    other.close()
    with pytest.raises(UserError, match=r"its training.batch is 8, and should be 4; resume it by itself"):
        reopen_fleet([paths[POISONED], other.path])


def resolve_with_batch(batch, fleet):
    config = fleet.sessions[0].folder.config
    return config | {"training": config["training"] | {"batch": batch}}


class Ship(Session):
    """A member of a fleet that learns nothing."""

    def __init__(self, seed, requests=1):
        self.requests, self.heard = requests, []
        self.trainer = types.SimpleNamespace(config=types.SimpleNamespace(seed=seed), join=lambda *_: None)
        self.folder = types.SimpleNamespace(path=f"runs/s{seed}", words=f"runs/s{seed} --env a:b", log_error=None)

    def life(self):
        try:
            for number in range(self.requests):
                self.heard.append((yield Learn(None, number)))
        except BaseException as error:
            self.heard.append(type(error).__name__)
            raise
        return "finished"


@pytest.mark.parametrize(("error", "ended"), [(KeyboardInterrupt, None), (RuntimeError, "RuntimeError")])
def test_what_befalls_all_is_told_to_all(monkeypatch, error, ended):
    """Somebody who will not wait, or a call that fails: everybody ends by himself, and knows why."""

    def answer(asked):
        if asked[1].first == 1:
            raise error
        return {index: "told" for index, one in enumerate(asked) if one is not None}

    monkeypatch.setattr(fleets, "Together", lambda members: types.SimpleNamespace(answer=answer))
    ships = [Ship(0), Ship(1, 5), Ship(2, 5)]
    if ended is None:
        with pytest.raises(KeyboardInterrupt):
            Fleet(ships, mapped=True).run()
    else:
        endings = Fleet(ships, mapped=True).run()
        assert [one if isinstance(one, str) else type(one).__name__ for one in endings] == ["finished", ended, ended]
    assert [ship.heard for ship in ships] == [["told"], *[["told", error.__name__]] * 2]


@pytest.mark.parametrize(
    ("endings", "code", "said"),
    [
        (["finished", "finished"], 0, "ambs report runs/s0 runs/s1"),
        (["interrupted", "interrupted"], 75, "ambs resume runs/s0 runs/s1 --env a:b"),
        (["finished", RunError("no disk", 74)], 74, "Finished: runs/s0"),
        ([RunError("no disk", 74), "interrupted"], 75, "ambs resume runs/s1 --env a:b"),
    ],
)
def test_how_a_fleet_ends(monkeypatch, capsys, endings, code, said):
    ships = [Ship(0), Ship(1)]
    for ship in ships:
        ship.watched_by = lambda observer: None
    monkeypatch.setattr("ambs.cli.display.Display.begin", lambda *_: None)
    fleet = types.SimpleNamespace(sessions=ships, notes=(), run=lambda: endings)
    assert train.watch_fleet(lambda **_: fleet) == code
    out, err = capsys.readouterr()
    assert said in out
    assert ("failed: no disk" in err) is any(isinstance(one, RunError) for one in endings)


def test_an_error_that_nobody_expects_is_not_swallowed(monkeypatch):
    monkeypatch.setattr("ambs.cli.display.Display.begin", lambda *_: None)
    fleet = types.SimpleNamespace(sessions=[], notes=(), run=lambda: [TypeError("a bug")])
    monkeypatch.setattr(train, "_say_all", lambda *_: None)
    with pytest.raises(TypeError, match="a bug"):
        train.watch_fleet(lambda **_: fleet)


def test_seeds_in_words():
    assert [parse_seeds(text) for text in ("3", "0-4", "0,2,5", "7, 0-1")] == [
        (3,),
        (0, 1, 2, 3, 4),
        (0, 2, 5),
        (7, 0, 1),
    ]
    for text, sentence in (
        ("", "must be whole numbers, such as 0-4 or 0,2,5, got ''"),
        ("1,", "must be whole numbers"),
        ("-1", "must be whole numbers"),
        ("1.5", "must be whole numbers"),
        ("4-0", "from the lower to the higher, such as 0-4, got 4-0"),
        ("0,1,0", "every seed once, and 0 is named twice"),
        ("0-99999999999", "1 to 64 seeds, got 65"),
    ):
        with pytest.raises(UserError, match=sentence):
            check_fleet(CONFIG, parse_seeds(text))
    with pytest.raises(UserError, match="1 to 64 seeds, got none"):
        check_fleet(CONFIG, ())
    with pytest.raises(UserError, match="guards a policy that is given"):
        check_fleet(resolve("guard", method="guard"), (0,))
    with pytest.raises(UserError, match="Weights & Biases follows one run"):
        check_fleet(changed(CONFIG, {"training": {"wandb": True}}), (0, 1))
    with pytest.raises(UserError, match="--seed is one, --seeds are several"):
        train.parse_train(["--preset", "quickstart", "--seeds", "0-2", "--seed=1"])


def test_memory_for_all(tmp_path):
    """Each ring would fit, all together would not; nothing is left."""
    huge = changed(CONFIG, {"training": {"capacity": 10**9, "frames": 10**9}})
    with pytest.raises(UserError, match=r"GB for each of 64 seeds, and there are .* GB of host memory"):
        start_fleet(huge, range(64), tmp_path, command=[])
    assert not list(tmp_path.iterdir())
