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
import os, sys, json, threading
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
from ambs.training.trainer import compiled_learn
from tests.tiny import TINY

config.SIZES["xxs"] = TINY
base = {
    "env": "ambs/Grid-v0",
    "agent": {"imagination": 2, "imagine_from": 8},
    "shield": {"horizon": 3, "traces": 40, "chunk": 20},
    "calibration": {"every": 0},
}
training = {
    "frames": 440, "envs": 4, "action_repeat": 1, "prefill": 400, "batch": 4, "length": 4, "train_ratio": 16.0,
    "updates_per_call": 2, "log_every": 40, "checkpoint_every": 0, "capacity": 400, "shield_from": 10**6,
}
def numbers(tree):
    return [np.array(leaf) for leaf in jax.tree.leaves(tree) if isinstance(leaf, jax.Array) and leaf.dtype.kind == "f"]

def places(tree):
    return max(len(leaf.devices()) for leaf in jax.tree.leaves(tree) if isinstance(leaf, jax.Array))

settings = {n: resolve("quickstart", changes=base | {"training": training | {"devices": n}}) for n in (1, 4)}
def copied(leaf):
    plain = isinstance(leaf, jax.Array) and not jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return jax.numpy.array(np.array(leaf)) if plain else leaf

stop = threading.Event()
session = start(settings[4], Path(sys.argv[1]), command=[], stop=stop)
trainer, given = session.trainer, []
shared = trainer._learn
def learn(*args):
    # Donated, and so copied before.
    given.append(jax.tree.map(copied, args))
    stop.set()
    return shared(*args)
trainer._learn = learn
found = {"state": session.run(), "places": places(trainer.learned), "acting": places(trainer.carry)}
before, (alone, _) = numbers(given[0][0]), compiled_learn(settings[1])(*given[0])
mine, theirs = numbers(trainer.learned), numbers(alone)
found["arrays"] = len(mine)
found["off"] = max(float(np.abs(a - b).max()) for a, b in zip(mine, theirs, strict=True))
found["moved"] = max(float(np.abs(a - b).max()) for a, b in zip(before, theirs, strict=True))
again, _ = reopen(session.folder.path)
found["again"] = all(np.array_equal(a, b) for a, b in zip(mine, numbers(again.trainer.learned), strict=True))
again.trainer.turn()
found["later"] = again.trainer.updates
again.folder.close()
again.trainer.close()
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
    assert (found["state"], found["places"], found["acting"]) == ("interrupted", 4, 1)
    assert found["arrays"] > 20
    # Adam's first steps have the size of its learning rate, whatever the gradient.
    assert found["moved"] > 1e-5
    assert found["off"] < 0.02 * found["moved"]
    assert found["again"]
    assert found["later"] > 2


def test_devices_that_are_not_there():
    with pytest.raises(UserError, match=r"training\.devices is 64, and JAX has"):
        Devices(64)
    with pytest.raises(UserError, match="batch must be a multiple of devices, 3, got 64"):
        resolve("default", changes={"training": {"devices": 3, "batch": 64}})
