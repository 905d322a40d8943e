"""Draw the picture of the inspector that the documentation shows: the page with the most to see, as Chromium draws it.

python tools/inspector_picture.py recorded [--out docs/inspector.png] [--dark]
"""

import argparse
import sys
import tempfile
from pathlib import Path

from ambs.report.inspector.recording import find, read_all
from ambs.report.inspector.write import most_to_see, pages

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.browser import Browser


def main() -> None:
    """Write the pages, open one, keep what the window shows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recorded", type=Path)
    parser.add_argument("--out", type=Path, default=Path("docs/inspector.png"))
    parser.add_argument("--dark", action="store_true")
    parser.add_argument("--height", type=int, default=1530)
    options = parser.parse_args()
    recordings, _ = read_all(find(options.recorded))
    with tempfile.TemporaryDirectory() as folder:
        pages(recordings, Path(folder))
        browser = Browser()
        try:
            browser.open(
                Path(folder) / f"{most_to_see(recordings).name}.html", height=options.height, dark=options.dark
            )
            browser.wait("document.documentElement.dataset.drawn === 'yes'")
            browser.screenshot(options.out)
        finally:
            browser.close()


if __name__ == "__main__":
    main()
