"""Trees to named arrays to bytes and back, bit for bit; what does not fit is named."""

import json
import struct

import equinox as eqx
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from ambs.agent.update import init
from ambs.config import SIZES, AgentConfig, Config, ModelConfig
from ambs.errors import UserError
from ambs.spec import Atoms, parse_formula
from ambs.storage.arrays import flatten, from_bytes, restore, to_bytes
from ambs.storage.checkpoint import load, save
from ambs.world_model.model import WorldSpec
from ambs.world_model.vision import ObservationSpec


def fresh(seed=0, **options):
    return jax.random.key(seed, **options)


def agent(*fills):
    """Real states of an xxs agent, with `fill(shape, dtype)` in every array: `init` itself would take 14 s."""
    config = Config(ModelConfig(size="xxs"), AgentConfig())
    spec = WorldSpec(ObservationSpec(vector=4), 2, Atoms(("hazard",)), parse_formula("!hazard"), frames=2)
    shapes = eqx.filter_eval_shape(lambda key: init(spec, config, discrete=False, key=key), fresh())

    def fill_with(fill):
        return lambda leaf: fill(leaf.shape, leaf.dtype) if isinstance(leaf, jax.ShapeDtypeStruct) else leaf

    return [jax.tree.map(fill_with(fill), shapes) for fill in fills]


def same(a, b):
    """Equal kinds and bits, NaNs included."""
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        assert type(x) is type(y)
        if eqx.is_array(x):
            assert jax.typeof(x) == jax.typeof(y)
            assert np.asarray(x).tobytes() == np.asarray(y).tobytes()


def test_agent_round_trip(tmp_path):
    """All bits of a real training state come back from the disk: NaNs, -0 and all."""
    rng = np.random.default_rng(0)

    def bits(shape, dtype):
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        return jnp.array(np.frombuffer(rng.bytes(size), dtype).reshape(shape))

    def zeros(shape, dtype):
        return jnp.array(np.zeros(shape, dtype))

    state, like = agent(bits, zeros)
    arrays = flatten(state)
    assert len(arrays) == 80
    assert arrays["model_opt/1/0/count"].shape == ()
    assert arrays["model/encoder/mlp/hidden/0/linear/weight"].shape == (5, SIZES["xxs"].vector_units)
    save(tmp_path, 7, {"learned": arrays}, {})
    same(restore(like, load(tmp_path).groups["learned"]), state)


def test_all_kinds_of_leaves():
    """JAX, NumPy, scalars, bfloat16, empty, transposed, PRNG keys; functions and Python numbers come from the template."""

    def tree(seed):
        rng = np.random.default_rng(seed)
        return {
            "half": jnp.asarray(rng.normal(size=(2, 3)), jnp.bfloat16),
            "flag": jnp.asarray(bool(seed)),
            "none": jnp.zeros((0, 3), jnp.uint8),
            "turned": rng.normal(size=(3, 4)).T,
            "big_endian": np.arange(3, dtype=">i4") + seed,
            "number": np.float32(seed),
            "keys": [jax.random.split(fresh(seed), 3), fresh(seed, impl="rbg")],
            "rest": (jnp.tanh, 1.5, "name", None),
        }

    state, like = tree(1), tree(2)
    arrays = flatten(state)
    assert set(arrays) >= {"keys/0#threefry2x32", "keys/1#rbg", "number"}
    assert arrays["keys/0#threefry2x32"].shape == (3, 2)
    back = restore(like, from_bytes(to_bytes(arrays)))
    assert jax.random.key_impl(back["keys"][1]) == "rbg"
    assert float(jax.random.uniform(back["keys"][0][1])) == float(jax.random.uniform(jax.random.split(fresh(1), 3)[1]))
    assert back["rest"] == like["rest"]
    assert isinstance(back["turned"], np.ndarray)
    assert isinstance(back["number"], np.float32)
    for name in ("half", "flag", "none", "turned", "big_endian", "number"):
        assert back[name].dtype == state[name].dtype.newbyteorder("=")
        np.testing.assert_array_equal(np.asarray(back[name]), np.asarray(state[name]))


def test_flatten_copies():
    """What was flattened does not change with the array it came from."""
    value = np.zeros(3)
    arrays = flatten({"a": value})
    value[:] = 1
    assert not arrays["a"].any()
    assert flatten(jnp.ones(2)).keys() == {"."}


def test_file_by_hand():
    """The bytes are those the safetensors format prescribes: length, header, little-endian data."""
    header = b'{"x":{"dtype":"BF16","shape":[2],"data_offsets":[0,4]}}'
    header += b" " * (-len(header) % 8)
    by_hand = struct.pack("<Q", len(header)) + header + b"\x80\x3f\x00\xc0"
    value = np.array([1.0, -2.0], ml_dtypes.bfloat16)
    np.testing.assert_array_equal(from_bytes(by_hand)["x"], value)
    ours = to_bytes({"x": value})
    length = struct.unpack("<Q", ours[:8])[0]
    assert json.loads(ours[8 : 8 + length]) == json.loads(header)
    assert ours[8 + length :] == by_hand[8 + len(header) :]


@pytest.mark.parametrize(
    ("like", "sentence"),
    [
        ({"a": jnp.zeros(3), "b": jnp.zeros(2)}, "lacks b"),
        ({}, "has an unknown a"),
        ({"a": jnp.zeros((3, 1))}, r"checkpoint's a is float32\[3\] where float32\[3, 1\] is needed"),
        ({"a": jnp.zeros(3, jnp.int32)}, r"float32\[3\] where int32\[3\]"),
        ({"a": jnp.zeros(3), "key": fresh(0, impl="rbg")}, "lacks key#rbg"),
    ],
)
def test_foreign_arrays(like, sentence):
    with pytest.raises(UserError, match=sentence):
        restore(like, flatten({"a": jnp.zeros(3)}))


def test_what_cannot_be_stored():
    with pytest.raises(TypeError, match="z has dtype complex128"):
        to_bytes({"z": np.zeros(1, complex)})
    with pytest.raises(ValueError, match="two arrays of the tree are called a/b"):
        flatten({"a/b": jnp.zeros(1), "a": {"b": jnp.zeros(1)}})
    with pytest.raises(ValueError, match="not a safetensors file"):
        from_bytes(b"nonsense")
