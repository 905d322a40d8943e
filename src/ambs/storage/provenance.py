"""Where a run comes from: versions of what it depends on, and the commit of this package's source."""

import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import ambs

PACKAGES = (
    "jax", "jaxlib", "equinox", "optax", "mujoco", "gymnasium", "numpy", "scipy", "safetensors", "tensorboard",
)  # fmt: skip


def versions() -> dict[str, str | None]:
    """Of ambs, Python and the packages that a result may depend on; None: not installed."""
    found: dict[str, str | None] = {"ambs": ambs.__version__, "python": sys.version.split()[0]}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    return found


def source() -> dict[str, Any]:
    """Commit of the package's source tree, and whether files in it differ; both None where it is no git checkout."""
    package = Path(ambs.__file__).parent

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(package), *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=20).stdout.strip()

    try:
        # An installed copy may lie in somebody else's repository: only a tracked package counts.
        git("ls-files", "--error-unmatch", "__init__.py")
        return {"commit": git("rev-parse", "HEAD"), "modified": bool(git("status", "--porcelain", "--", "."))}
    except (OSError, subprocess.SubprocessError):
        return {"commit": None, "modified": None}
