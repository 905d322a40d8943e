"""Strictness for the whole run: a PRNG key is used once, and no array is broadcast by rank silently."""

import os
import shutil
import tempfile

# Compiling is most of what the tests do, and on arrays as small as theirs optimised machine code saves nothing; where a test
# computes for long, `tests.tiny.SWIFT` brings the optimisations back. Must precede JAX.
os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_cpu_multi_thread_eigen=false --xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false "
    "--xla_cpu_parallel_codegen_split_count=1",
)
# What was compiled once, the commands that tests start need not compile again. Each worker has a folder of its own, because
# JAX would read what another is still writing.
CACHE = "JAX_COMPILATION_CACHE_DIR"
made = None if CACHE in os.environ else tempfile.mkdtemp(prefix="ambs-test-")
os.environ[CACHE] = os.path.join(made or os.environ[CACHE], os.environ.get("PYTEST_XDIST_WORKER", "alone"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.3")

import jax  # noqa: E402
import matplotlib  # noqa: E402
import pytest  # noqa: E402

matplotlib.use("agg")
jax.config.update("jax_debug_key_reuse", True)
jax.config.update("jax_numpy_rank_promotion", "raise")


@pytest.hookimpl(tryfirst=True, optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """One worker runs all tests of a file: what a file's tests share is trained and compiled once, not by every worker."""
    if config.getvalue("dist") != "load":
        return None
    from xdist.scheduler import LoadFileScheduling

    config.option.loadscopereorder = False  # The order is that of the function below.
    return LoadFileScheduling(config, log)


def pytest_collection_modifyitems(items):
    """Files that train or start processes come first, so that at the end no worker waits for another's long one."""
    long = {item.path for item in items for marker in ("learns", "process") if item.get_closest_marker(marker)}
    items.sort(key=lambda item: item.path not in long)


def pytest_unconfigure() -> None:
    """Delete what was compiled, in the process that made the folder."""
    if made is not None:
        shutil.rmtree(made, ignore_errors=True)


@pytest.fixture(scope="session")
def browser():
    """One browser for all pages that are tested."""
    from tests.browser import Browser

    opened = Browser()
    yield opened
    opened.close()
