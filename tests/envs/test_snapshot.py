"""Snapshots keep every bit."""

import numpy as np
import pytest

from ambs.envs.snapshot import generator_from_array, generator_to_array, one_env, pack, together, unpack
from ambs.errors import UserError


def test_generators_continue():
    rng = np.random.default_rng(7)
    rng.integers(0, 10, 3, dtype=np.uint32)
    copy = generator_from_array(generator_to_array(rng))
    assert (rng.standard_normal(100) == copy.standard_normal(100)).all()
    assert (rng.integers(0, 10, 5, dtype=np.uint32) == copy.integers(0, 10, 5, dtype=np.uint32)).all()


def test_other_generators_are_refused():
    with pytest.raises(UserError, match="PCG64"):
        generator_to_array(np.random.Generator(np.random.MT19937(0)))


def test_packing_is_exact():
    snapshot = {
        "a": np.array([1e-300, np.pi, -0.0]),
        "b": np.array([[1, 2**63]], dtype=np.uint64),
        "c": np.array(True),
        "d": np.array([1, 2, 3], dtype=np.int8),
    }
    words = pack(snapshot)
    assert words.dtype == np.uint32
    again = unpack(words, snapshot)
    for name, array in snapshot.items():
        assert again[name].dtype == array.dtype
        assert again[name].tobytes() == array.tobytes()
        assert again[name].shape == array.shape


def test_one_of_many_and_many_of_one():
    """Two environments of two cells each: what is shared stays, rows and numbered fields go to their environment."""
    many = {
        "steps": np.array([7, 8]),
        "over": np.array([False, True]),
        "labels": np.array([[True, False], [False, False]]),
    }
    many |= {"0.cells": np.array([1, 2]), "1.cells": np.array([3, 4])}
    second = one_env(many, 1)
    assert {name: array.tolist() for name, array in second.items()} == {
        "steps": [7, 8], "over": [True], "labels": [[False, False]], "0.cells": [3, 4],
    }  # fmt: skip
    both = together([one_env(many, 0), second])
    assert {name: array.tolist() for name, array in both.items()} == {name: many[name].tolist() for name in many}
