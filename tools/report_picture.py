"""Draw the picture of a report that the documentation shows: the page of some runs, as the system's Chromium draws it.

python tools/report_picture.py results/pointgoal1 [--out docs/report.png] [--dark]
"""

import tempfile
from pathlib import Path

import picture

from ambs.report.summary import summarise
from ambs.report.write import write


def main() -> None:
    """Write the page, open it, keep what the window shows."""
    parser = picture.parser(__doc__, out="docs/report.png", height=1000)
    parser.add_argument("runs", nargs="+", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "report.html"
        write(summarise(options.runs), page, "html")
        picture.draw(page, options)


if __name__ == "__main__":
    main()
