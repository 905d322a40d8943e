"""Environment states as plain arrays: random generators included, and packable into one vector without losing a bit."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from ambs.config.checks import short
from ambs.errors import UserError

Snapshot = dict[str, np.ndarray]


def generator_to_array(generator: np.random.Generator) -> np.ndarray:
    """State of a PCG64 generator (Gymnasium's `np_random`) as uint64 `[6]`."""
    state: Any = generator.bit_generator.state
    if state["bit_generator"] != "PCG64":
        raise UserError(f"only PCG64 generators can be saved, not {state['bit_generator']}")
    low = (1 << 64) - 1
    words = [part for key in ("state", "inc") for part in (state["state"][key] & low, state["state"][key] >> 64)]
    return np.array([*words, state["has_uint32"], state["uinteger"]], dtype=np.uint64)


def generator_from_array(words: np.ndarray) -> np.random.Generator:
    """The generator that `generator_to_array` saved; it continues with the same numbers."""
    state_low, state_high, inc_low, inc_high, has_uint32, uinteger = (int(word) for word in words)
    generator = np.random.Generator(np.random.PCG64(0))
    generator.bit_generator.state = {
        "bit_generator": "PCG64",
        "state": {"state": state_low | state_high << 64, "inc": inc_low | inc_high << 64},
        "has_uint32": has_uint32,
        "uinteger": uinteger,
    }
    return generator


def pack(snapshot: Snapshot) -> np.ndarray:
    """All arrays of a snapshot, bit by bit, as one uint32 vector (JAX carries that without rounding 64-bit values)."""
    data = b"".join(np.ascontiguousarray(array).tobytes() for array in snapshot.values())
    return np.frombuffer(data + bytes(-len(data) % 4), dtype=np.uint32)


def unpack(words: np.ndarray, like: Snapshot) -> Snapshot:
    """The snapshot that `pack` made, with the names, shapes and types of `like`."""
    data = np.ascontiguousarray(words).tobytes()
    snapshot, start = {}, 0
    for name, array in like.items():
        stop = start + array.nbytes
        snapshot[name] = np.frombuffer(data[start:stop], dtype=array.dtype).reshape(array.shape).copy()
        start = stop
    return snapshot


def check_state(owner: str, state: Any, names: Iterable[str]) -> None:
    """Refuse what has not got these fields; their shapes are not looked at, for this is called at every imagined step."""
    if not isinstance(state, Mapping) or not all(name in state for name in names):
        raise UserError(
            f"the state of {owner} must be what get_state gave, with {', '.join(names)}, got {short(state)}"
        )


def check_fields(state: Snapshot, like: Snapshot, owner: str) -> None:
    """Refuse, in a sentence, a state without the fields and shapes of `like`."""
    if not isinstance(state, Mapping):
        raise UserError(f"the state of {owner} must be what get_state gave, got {state!r}")
    for name, array in like.items():
        if name not in state or np.shape(state[name]) != array.shape:
            got = np.shape(state[name]) if name in state else "nothing"
            raise UserError(f"state field {name!r} must have shape {array.shape} for {owner}, got {got}")


SHARED = ("steps",)
"""Fields of a vector environment's state that are not one environment's: all others have a leading axis of environments, or
are called after the number of theirs."""


def one_env(state: Snapshot, index: int) -> Snapshot:
    """The part of one environment in the state of a vector environment: the state of one of a single environment."""
    own = {}
    for name, array in state.items():
        number, dot, rest = name.partition(".")
        if dot and number.isdigit():
            if int(number) == index:
                own[f"0.{rest}"] = array
        else:
            own[name] = array if name in SHARED else array[index : index + 1]
    return own


def together(states: list[Snapshot]) -> Snapshot:
    """States of single environments (`one_env`) as that of a vector environment of so many."""
    whole: Snapshot = {}
    for name, array in states[0].items():
        if name.startswith("0."):
            whole |= {f"{index}.{name[2:]}": state[name] for index, state in enumerate(states)}
        else:
            whole[name] = array if name in SHARED else np.concatenate([state[name] for state in states])
    return whole
