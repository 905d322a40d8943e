"""`ambs` with networks as small as they get, whose compiled programs are kept: `python -m tests.reproduce.host …`.

AMBS_DIES names a part of the `--out` of a run that is killed, as by a full memory, once it has a checkpoint.
"""

import os
import signal
import sys

os.environ["XLA_FLAGS"] = (
    "--xla_cpu_multi_thread_eigen=false --xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false"
)

import jax

from ambs import config
from ambs.cli.main import main
from ambs.training.checkpoints import Checkpoints
from tests.tiny import TINY

config.SIZES["xxs"] = TINY
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)

if __name__ == "__main__":
    dies = os.environ.get("AMBS_DIES")
    if dies and sys.argv[1] == "train" and dies in sys.argv[sys.argv.index("--out") + 1]:
        save = Checkpoints.save

        def save_and_die(checkpoints: Checkpoints) -> None:
            save(checkpoints)
            os.kill(os.getpid(), signal.SIGKILL)

        Checkpoints.save = save_and_die
    main()
