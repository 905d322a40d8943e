"""The verbs about environments."""

import json
from pathlib import Path

import numpy as np
import pytest

from ambs.cli.envs import Envs
from ambs.cli.play import Play
from ambs.cli.verify import Verify
from ambs.errors import UserError

GOLDEN = Path(__file__).parents[1] / "golden"


def test_envs_lists_every_environment_with_its_formula(capsys):
    assert Envs().run() == 0
    lines = capsys.readouterr().out.splitlines()
    assert any("ambs/PointGoal2-v0" in line and "!hazard & !collision" in line and "10 vases" in line for line in lines)
    assert Envs(json=True).run() == 0
    assert {"ambs/PointGoal0-v0", "ambs/CarGoal1-v0"} <= {row["id"] for row in json.loads(capsys.readouterr().out)}


@pytest.mark.process
def test_verify_prints_the_figures_as_json_and_judges(tmp_path, capsys):
    with np.load(GOLDEN / "PointGoal1.npz") as archive:
        # Pictures take long to compare, and have a test of their own.
        arrays = {name: array for name, array in archive.items() if not name.startswith("frame")}
    np.savez(tmp_path / "as_recorded.npz", **arrays)
    np.savez(tmp_path / "altered.npz", **{**arrays, "reward": arrays["reward"] + 0.1})
    assert Verify("golden", str(tmp_path / "as_recorded.npz"), json=True).run() == 0
    report = json.loads(capsys.readouterr().out)
    wanted = """max_position_error share_steps_within_1e-6 max_reward_error hazard_mismatches vase_label_agreement
        max_lidar_error share_steps_within_1e-4 share_contact_steps"""
    assert set(wanted.split()) <= set(report)
    assert report["faithful"]
    assert "the recording has no frames: pictures were not compared" in report["remarks"]
    assert Verify("golden", str(tmp_path / "altered.npz")).run() == 1
    assert "not faithful: max_reward_error is 0.1" in capsys.readouterr().out


@pytest.mark.process
def test_play_writes_a_moving_picture(tmp_path, capsys):
    from PIL import Image

    video = tmp_path / "episode.gif"
    assert Play("PointGoal0", video=str(video), steps=4, size=32, view="top_down").run() == 0
    assert "5 frames" in capsys.readouterr().out
    with Image.open(video) as image:
        assert image.size == (32, 32 + 28)
        assert image.n_frames > 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"video": "episode.avi"}, "video must end in .gif or .mp4, got 'episode.avi'"),
        ({"video": "no_such_folder/episode.gif"}, "there is no folder 'no_such_folder'"),
        ({"steps": 0}, "--steps must be a whole number from 1 to 100000, got 0"),
        ({"size": 8}, "size must be at least 32 pixels and at most 4096, got 8"),
        ({"env": "PointGaol1"}, "unknown environment 'PointGaol1'.*did you mean 'PointGoal1'"),
    ],
)
def test_play_refuses_before_it_plays(options, message):
    with pytest.raises(UserError, match=message):
        Play(**{"env": "PointGoal0", **options}).run()
