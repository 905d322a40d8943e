"""Trees of arrays as flat dictionaries of named NumPy arrays, and those as bytes (safetensors; no pickle)."""

from typing import Any

import ml_dtypes
import numpy as np
import safetensors
import safetensors.numpy

from ambs.errors import UserError

Arrays = dict[str, np.ndarray]

_DTYPES: dict[str, Any] = {
    "BOOL": np.bool_, "U8": np.uint8, "I8": np.int8, "U16": np.uint16, "I16": np.int16, "U32": np.uint32, "I32": np.int32,
    "U64": np.uint64, "I64": np.int64, "F16": np.float16, "BF16": ml_dtypes.bfloat16, "F32": np.float32, "F64": np.float64,
}  # fmt: skip
_WRITABLE = {np.dtype(dtype) for dtype in _DTYPES.values()}


def flatten(tree: Any) -> Arrays:
    """Copies of a tree's arrays by path (`model/rssm/gru/weight`); PRNG keys as their data, `path#threefry2x32`.

    Other leaves (functions, Python numbers) are not state: `restore` takes them from its template.
    """
    import jax

    named = _named(tree)
    data = jax.device_get([jax.random.key_data(leaf) if _is_key(leaf) else leaf for leaf in named.values()])
    # A copy, because on a CPU it may be a view of memory that the next training step gets to write to.
    return {name: np.array(value) for name, value in zip(named, data, strict=True)}


def restore(like: Any, arrays: Arrays) -> Any:
    """The tree whose arrays `flatten` gave, with the structure and other leaves of `like`.

    JAX arrays, or only their shapes as `jax.eval_shape` gives them, go to the default device, NumPy arrays stay NumPy. Names,
    shapes and dtypes must be those of `like`.
    """
    import jax
    import jax.numpy as jnp

    def one(name: str, leaf: Any) -> Any:
        value = arrays[name]
        want = jax.random.key_data(leaf) if _is_key(leaf) else leaf
        if value.shape != want.shape or value.dtype != want.dtype:
            raise UserError(f"the checkpoint's {name} is {_kind(value)} where {_kind(want)} is needed")
        if isinstance(leaf, np.ndarray | np.generic):
            return value.copy() if isinstance(leaf, np.ndarray) else value[()]
        data = jnp.array(value)
        return jax.random.wrap_key_data(data, impl=jax.random.key_impl(leaf)) if _is_key(leaf) else data

    named = _named(like)
    for ours, theirs, verdict in ((named, arrays, "lacks"), (arrays, named, "has an unknown")):
        different = [name for name in ours if name not in theirs]
        if different:
            more = f" and {len(different) - 1} more" if different[1:] else ""
            raise UserError(f"the checkpoint {verdict} {different[0]}{more}")
    values = iter([one(name, leaf) for name, leaf in named.items()])
    return jax.tree.map(lambda leaf: next(values) if _is_array(leaf) else leaf, like)


def to_bytes(arrays: Arrays) -> bytes:
    """A safetensors file."""
    for name, value in arrays.items():
        if value.dtype not in _WRITABLE:
            raise TypeError(f"{name} has dtype {value.dtype}, which a checkpoint cannot hold")
    # safetensors takes memory as it lies; asarray, unlike ascontiguousarray, leaves a scalar's shape alone.
    return safetensors.numpy.save({name: np.asarray(value, order="C") for name, value in arrays.items()})


def from_bytes(data: bytes) -> Arrays:
    """The arrays of a safetensors file, writable; ValueError if it is none or has other dtypes than `to_bytes` writes."""
    try:
        parts = safetensors.deserialize(data)
        return {
            name: np.frombuffer(part["data"], _DTYPES[part["dtype"]]).reshape(part["shape"]) for name, part in parts
        }
    except (safetensors.SafetensorError, KeyError) as error:
        raise ValueError(f"not a safetensors file with known dtypes: {error}") from error


def _named(tree: Any) -> dict[str, Any]:
    import jax

    named: dict[str, Any] = {}
    for path, leaf in jax.tree.leaves_with_path(tree):
        if _is_array(leaf):
            name = jax.tree_util.keystr(path, simple=True, separator="/") or "."
            name += f"#{jax.random.key_impl(leaf)}" if _is_key(leaf) else ""
            if name in named:
                raise ValueError(f"two arrays of the tree are called {name}")
            named[name] = leaf
    return named


def _is_array(leaf: Any) -> bool:
    import jax

    return isinstance(leaf, jax.Array | jax.ShapeDtypeStruct | np.ndarray | np.generic)


def _is_key(leaf: Any) -> bool:
    import jax

    return isinstance(leaf, jax.Array) and jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _kind(value: Any) -> str:
    return f"{value.dtype}{list(value.shape)}"
