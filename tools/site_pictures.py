"""For mkdocs.yml: pictures of results belong to the site, so that it can be put anywhere."""

from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent


def on_files(files: Files, config: Any) -> Files:
    """Take the pictures in `results/` into the site."""
    for picture in sorted((ROOT / "results").rglob("*.png")):
        files.append(File.generated(config, picture.relative_to(ROOT).as_posix(), abs_src_path=str(picture)))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Seen from the repository's pages they lie beside the documentation; in the site, within it."""
    return markdown.replace("](../results/", "](results/")
