"""What XLA has compiled is kept in the user's cache folder, so that the next run begins sooner."""

from __future__ import annotations

import errno
import hashlib
import os
import platform
import sys
from contextlib import suppress
from pathlib import Path

VARIABLE = "AMBS_CACHE"
"""Environment variable: `off`, or the folder to keep compiled programs in."""
LIMIT = 2 << 30
"""Bytes that are kept, of the programs used last. JAX's own limit needs another package and a lock on every access."""


def keep_compiled() -> str | None:
    """Let JAX keep what it compiles; returns a sentence if that is not possible. To be called before anything is compiled.

    `JAX_COMPILATION_CACHE_DIR`, where it is set, is left to JAX.
    """
    told = os.environ.get(VARIABLE, "")
    if told.lower() == "off" or "JAX_COMPILATION_CACHE_DIR" in os.environ:
        return None
    try:
        folder = (Path(told).expanduser().absolute() if told else user_cache() / "ambs" / "xla") / _machine()
    except RuntimeError as error:
        return f"compiled programs are not kept ({error}): {VARIABLE} names a folder for them, or off"
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        prune(folder, LIMIT)
    except OSError as error:
        why = error.strerror or error
        return f"compiled programs cannot be kept in {folder} ({why}): {VARIABLE} names another folder, or off"
    import jax

    jax.config.update("jax_compilation_cache_dir", str(folder))
    return None


def user_cache() -> Path:
    """The folder in which a user's programs keep what they could make again."""
    told = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if told.is_absolute():  # The standard ignores others.
        return told
    return Path.home() / ("Library/Caches" if sys.platform == "darwin" else ".cache")


def prune(folder: Path, limit: int) -> None:
    """Delete the files that were not used for longest, until at most `limit` bytes are left; others may do so meanwhile."""
    found = []
    for path in folder.iterdir():
        with suppress(FileNotFoundError):
            facts = path.stat()
            found.append((max(facts.st_atime, facts.st_mtime), facts.st_size, path))
    left = sum(size for _, size, _ in found)
    for _, size, path in sorted(found):
        if left <= limit:
            return
        path.unlink(missing_ok=True)
        left -= size


def _machine() -> str:
    """Ours among machines that share a home folder: machine code for one processor may not run on another."""
    facts = platform.machine()
    with suppress(OSError):
        text = Path("/proc/cpuinfo").read_text()
        facts += next((line for line in text.splitlines() if line.startswith(("flags", "Features"))), "")
    return hashlib.sha256(facts.encode()).hexdigest()[:12]
