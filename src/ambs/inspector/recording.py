"""Recorded episodes, read with suspicion: what is truncated, foreign or of another shape gets a sentence."""

import json
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ambs.errors import UserError, one_line
from ambs.recording.schema import Arrays, Episode, Facts, known_names
from ambs.report.foresight import read_brief
from ambs.storage.files import read_plain

LARGEST = 1 << 29
"""Bytes of one recording, unpacked; there is never more than one in memory, or two for a moment."""
WIDEST = 65_000
"""Pixels of a picture, or of all pictures of a film strip side by side: what a JPEG can hold."""
MOST_TRACES, MOST_LOOKS, LONGEST = 10_000, 500, 10_000
"""Of a decision rule that a page can work out again without a pause, and of its horizon."""


def find(path: Path) -> list[Path]:
    """The recordings of a folder, or one by its own name."""
    if path.is_file():
        return [path.with_suffix(".npz")]
    if not path.is_dir():
        raise UserError(f"{path} is neither a folder of recorded episodes nor one of them")
    found = sorted(path.glob("episode-*.npz"))
    if not found:
        raise UserError(f"{path} holds no recorded episode; `ambs eval RUN --record {path}` would write some")
    return found


def read(path: Path) -> Episode:
    """Read and check one recording; pictures of two cameras are put side by side."""
    facts = _facts(path.with_suffix(".json"))
    try:
        arrays = _arrays(path)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}") from None
    except Exception as error:  # Unpackers and parsers have exceptions of their own, without a common root.
        raise UserError(f"{path} is not a whole recording: {one_line(error)}") from None
    episode = replace(Episode.from_arrays(path.name, facts, arrays), name=path.stem)
    _check(path.name, episode)
    return _for_people(episode)


def side_by_side(pictures: np.ndarray) -> np.ndarray:
    """Pictures `[…, height, width, 3·cameras]` for people: `[…, height, cameras·width, 3]`, what is ahead on the left."""
    *lead, height, width, channels = pictures.shape
    apart = pictures.reshape(*lead, height, width, channels // 3, 3)
    return apart.swapaxes(-3, -2).reshape(*lead, height, width * channels // 3, 3)


def _for_people(episode: Episode) -> Episode:
    def shown(table: Any) -> Any:
        return table if table is None or table.image is None else replace(table, image=side_by_side(table.image))

    looked = episode.examination
    looked = replace(looked, futures=shown(looked.futures), twin=shown(looked.twin))
    return replace(episode, steps=shown(episode.steps), examination=looked)


def _facts(path: Path) -> Facts:
    try:
        data = json.loads(read_plain(path))
        # Half of a surrogate pair is a string to JSON, and to nobody who writes or draws text.
        data = json.loads(json.dumps(data, ensure_ascii=False).encode(errors="replace"))
    except FileNotFoundError:
        raise UserError(f"{path} is missing: a recording is an .npz file and the .json file beside it") from None
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} cannot be read: {one_line(error)}") from None
    facts = Facts.from_json(data, path)
    _check_rule(path, facts.settings)
    try:
        return replace(facts, foresight=None if facts.foresight is None else read_brief(facts.foresight))
    except ValueError as error:
        raise UserError(f"{path}: foresight is {error}, got {one_line(facts.foresight)}") from None


def _arrays(path: Path) -> Arrays:
    with zipfile.ZipFile(path) as archive:
        size = sum(item.file_size for item in archive.infolist())
    if size > LARGEST:
        raise ValueError(f"it claims {size:,} bytes")
    wanted = known_names()
    with np.load(path, allow_pickle=False) as stored:
        arrays = {name: stored[name] for name in stored.files if name in wanted}
    for name, array in arrays.items():
        if not isinstance(array, np.ndarray):
            raise ValueError(f"{name} is no array")
    return arrays


def _check(name: str, episode: Episode) -> None:
    """Refuse what has the right form and makes no sense, or cannot be drawn."""
    looked, count = episode.examination, episode.facts.steps
    for group, table in (("futures", looked.futures), ("twin", looked.twin), ("truth", looked.truth)):
        if table is not None and ((table.step < 0) | (table.step >= count)).any():
            raise UserError(f"{name}: {group}.step points beyond the {count} steps of the episode")
    truth = looked.truth
    if truth is not None and ((truth.safe < 0) | (truth.safe > truth.futures) | (truth.futures < 1)).any():
        raise UserError(f"{name}: truth.safe must count some of truth.futures, of which there must be at least one")
    for key, array in episode.arrays().items():
        if key == "picture" or key.endswith(".image"):
            _check_pictures(name, key, array)
        if key.endswith(".extent"):
            least_x, most_x, least_y, most_y = array.tolist()
            if not (-1e9 < least_x < most_x < 1e9 and -1e9 < least_y < most_y < 1e9):
                raise UserError(f"{name}: {key} must be least and greatest x, least and greatest y")


def _check_rule(path: Path, settings: dict[str, Any]) -> None:
    """Refuse a decision rule that would keep the page busy for ever: it is worked out in whole numbers of any length."""
    for name in ("safety_level", "approximation_error", "failure_probability", "model_error"):
        if not (settings[name] == 0 or 1e-30 <= settings[name] <= 1):
            raise UserError(f"{path}: {name} must be a probability, got {one_line(settings[name])}")
    looks = settings["traces"] / settings["chunk"] if settings.get("rule") != "fixed" else 1
    if settings["traces"] > MOST_TRACES or looks > MOST_LOOKS or settings["horizon"] > LONGEST:
        raise UserError(
            f"{path}: at most {MOST_TRACES} traces, {MOST_LOOKS} chunks of them and {LONGEST} steps ahead can be shown, "
            f"got {settings['traces']} in chunks of {settings['chunk']}, and {settings['horizon']}"
        )


def _check_pictures(name: str, key: str, array: np.ndarray) -> None:
    height, width, channels = array.shape[-3:]
    if channels not in (3, 6):
        raise UserError(f"{name}: pictures of {key} must have 3 channels, or 6 of two cameras, got {channels}")
    beside = array.shape[-4] if key in ("futures.image", "twin.image") else 1
    if max(height, width * beside * channels // 3) > WIDEST:
        raise UserError(f"{name}: pictures of {key} are too large, {height} × {width}")
