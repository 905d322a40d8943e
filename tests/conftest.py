"""Strictness for the whole run: a PRNG key is used once, and no array is broadcast by rank silently."""

import os

# Compiling is most of what the tests do; on matrices as small as theirs, less of it runs as fast. Must precede JAX.
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false --xla_backend_optimization_level=1")

import jax
import matplotlib

matplotlib.use("agg")
jax.config.update("jax_debug_key_reuse", True)
jax.config.update("jax_numpy_rank_promotion", "raise")
