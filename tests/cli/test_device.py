"""Where to compute, if the machine has no such thing."""

import jax
import pytest

from ambs.cli.train import prepare_device
from ambs.errors import UserError


@pytest.mark.parametrize("error", [RuntimeError("no such backend"), AssertionError()])
def test_a_gpu_that_is_not_there_is_told_in_a_sentence(error, monkeypatch):
    """JAX raises the one where a plugin finds no GPU, and the other where there is no plugin."""

    def none_here():
        raise error

    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.setattr(jax, "devices", none_here)
    monkeypatch.setattr(jax.config, "update", lambda *_: None)
    with pytest.raises(
        UserError, match=r"there is no GPU that JAX can use here; install `ambs\[cuda\]` or use --device cpu"
    ):
        prepare_device("gpu", "xs")
