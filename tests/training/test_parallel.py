"""An update shared by several devices is that of one, to rounding: on four devices that XLA makes of a CPU."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ambs.config.resolve import resolve
from ambs.errors import UserError
from ambs.training.parallel import Devices

ROOT = Path(__file__).parents[2]
CODE = """
import os, sys, json
os.environ["XLA_FLAGS"] = (
    "--xla_force_host_platform_device_count=4 --xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false"
)
os.environ["JAX_PLATFORMS"] = "cpu"
import jax
import numpy as np
from pathlib import Path
from ambs import config
from ambs.config.resolve import resolve
from ambs.training.session import reopen, start
from tests.tiny import TINY

config.SIZES["xxs"] = TINY
base = {
    "env": "ambs/Grid-v0",
    "agent": {"imagination": 2, "imagine_from": 8},
    "shield": {"horizon": 3, "traces": 40, "chunk": 20},
    "calibration": {"every": 4, "windows": 16},
}
training = {
    "frames": 440, "envs": 4, "action_repeat": 1, "prefill": 400, "batch": 4, "length": 4, "train_ratio": 8.0,
    "updates_per_call": 2, "log_every": 40, "checkpoint_every": 0, "capacity": 400, "shield_from": 10**6,
}
found = {}
def weights(trainer):
    return [np.asarray(leaf) for leaf in jax.tree.leaves(trainer.learned) if hasattr(leaf, "shape") and leaf.dtype.kind == "f"]
runs = {}
for devices in (1, 4):
    settings = resolve("quickstart", changes=base | {"training": training | {"devices": devices}})
    session = start(settings, Path(sys.argv[1]) / str(devices), command=[])
    trainer = session.trainer
    while trainer.updates < 2:
        trainer.turn()
    runs[devices] = weights(trainer)
    found[f"updates {devices}"] = trainer.updates
    found[f"places {devices}"] = max(len(leaf.devices()) for leaf in jax.tree.leaves(trainer.learned) if hasattr(leaf, "devices"))
    found[f"acting {devices}"] = max(len(leaf.devices()) for leaf in jax.tree.leaves(trainer.carry) if hasattr(leaf, "devices"))
    if devices == 4:
        found["state"] = session.run()
        again, _ = reopen(session.folder.path, frames=480)
        found["again"] = again.run()
    else:
        session.folder.close(); trainer.close()
found["arrays"] = len(runs[1])
scale = max(float(np.abs(leaf).max()) for leaf in runs[1])
found["off"] = max(float(np.abs(a - b).max()) for a, b in zip(runs[1], runs[4], strict=True)) / scale
found["same"] = all(np.array_equal(a, b) for a, b in zip(runs[1], runs[4], strict=True))
print(json.dumps(found))
"""


@pytest.mark.learns
@pytest.mark.process
def test_four_devices_learn_what_one_does(tmp_path):
    environment = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    done = subprocess.run(
        [sys.executable, "-c", CODE, str(tmp_path)], capture_output=True, text=True, env=environment, timeout=500
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert (found["updates 1"], found["updates 4"]) == (2, 2)
    assert (found["places 1"], found["places 4"], found["acting 4"]) == (1, 4, 1)
    assert found["arrays"] > 20
    assert found["off"] < 1e-5
    assert (found["state"], found["again"]) == ("finished", "finished")


def test_devices_that_are_not_there():
    with pytest.raises(UserError, match=r"training\.devices is 64, and JAX has"):
        Devices(64)
    with pytest.raises(UserError, match="batch must be a multiple of devices, 3, got 64"):
        resolve("default", changes={"training": {"devices": 3, "batch": 64}})
