"""What decides about safety is what was saved, or the run refuses: bits flipped, manifests forged, foreign folders."""

import random

import pytest

from ambs.errors import UserError
from tests.faults.counts import FULL, report
from tests.training.test_binding import is_bound, make


def bits_of(path, few):
    """Positions of bits in a file: all of them in full, else a sample."""
    places = range(8 * path.stat().st_size)
    return places if FULL else random.Random(0).sample(places, few)


def test_no_bit_of_the_settings_or_the_manifest_changes_in_silence(tmp_path):
    """Each file by itself; whatever is flipped, the run is refused or the checkpoint damaged, in a sentence."""
    run = make(tmp_path)
    (folder,) = (run / "checkpoints").glob("0*")
    tried = {}
    for file in (run / "config.json", folder / "manifest.json", folder / "manifest.sha256"):
        sound, places = file.read_bytes(), bits_of(file, 200)
        for place in places:
            data = bytearray(sound)
            data[place // 8] ^= 1 << place % 8
            file.write_bytes(data)
            with pytest.raises(UserError):
                is_bound(run)
        file.write_bytes(sound)
        tried[file.name] = len(places)
    assert is_bound(run) == ()
    named = ", ".join(f"{name} {number}" for name, number in tried.items())
    report("every bit of settings and manifest flipped", f"{sum(tried.values())} ({named}): 0 loaded in silence")
