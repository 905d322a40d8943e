"""Draw the picture of a report that the documentation shows: the page of some runs, as the system's Chromium draws it.

python tools/report_picture.py results/pointgoal1 [--out docs/report.png] [--dark]
"""

import argparse
import sys
import tempfile
from pathlib import Path

from ambs.report.summary import summarise
from ambs.report.write import write

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.browser import Browser


def main() -> None:
    """Write the page, open it, keep what the window shows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, default=Path("docs/report.png"))
    parser.add_argument("--dark", action="store_true")
    parser.add_argument("--height", type=int, default=1000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "report.html"
        write(summarise(options.runs), page, "html")
        browser = Browser()
        try:
            browser.open(page, height=options.height, dark=options.dark)
            browser.wait("document.documentElement.dataset.drawn === 'yes'")
            browser.screenshot(options.out)
        finally:
            browser.close()


if __name__ == "__main__":
    main()
