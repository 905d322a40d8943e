"""Draw the picture of the inspector that the documentation shows: the page with the most to see, as Chromium draws it.

python tools/inspector_picture.py recorded [--out docs/inspector.png] [--dark]
"""

import tempfile
from pathlib import Path

import picture

from ambs.inspector.recording import find
from ambs.inspector.write import look_through, most_to_see, pages


def main() -> None:
    """Write the pages, open one, keep what the window shows."""
    parser = picture.parser(__doc__, out="docs/inspector.png", height=1530)
    parser.add_argument("recorded", type=Path)
    options = parser.parse_args()
    recordings, _ = look_through(find(options.recorded))
    with tempfile.TemporaryDirectory() as folder:
        pages(recordings, Path(folder))
        picture.draw(Path(folder) / f"{most_to_see(recordings).name}.html", options)


if __name__ == "__main__":
    main()
