"""Strictness for the whole run: a PRNG key is used once, and no array is broadcast by rank silently."""

import jax
import matplotlib

matplotlib.use("agg")
jax.config.update("jax_debug_key_reuse", True)
jax.config.update("jax_numpy_rank_promotion", "raise")
