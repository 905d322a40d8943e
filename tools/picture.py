"""What the tools that draw pictures of pages have in common: their options, and a browser."""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.browser import Browser


def parser(description: str | None, out: str, height: int) -> argparse.ArgumentParser:
    """A parser that knows where the picture goes and how it looks."""
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--out", type=Path, default=Path(out))
    made.add_argument("--dark", action="store_true")
    made.add_argument("--height", type=int, default=height)
    return made


def draw(page: Path, options: argparse.Namespace) -> None:
    """Open a page and keep what the window shows once it is drawn."""
    browser = Browser()
    try:
        browser.open(page, height=options.height, dark=options.dark)
        browser.wait("document.documentElement.dataset.drawn === 'yes'")
        browser.screenshot(options.out)
    finally:
        browser.close()
