"""Draw docs/shields.png of what `benchmarks/shields.py` printed: violations against overrides, a mark for each agent and kind.

python tools/shields_picture.py results/shields/point-world-3-steps.jsonl results/shields/point-world-8-steps.jsonl
"""

import argparse
import json
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

COLOURS = {
    "off": "#777777",
    "ambs": "#1a5fa8",
    "recovery": "#2e8b57",
    "latent": "#b07aa1",
    "critic": "#e08214",
    "prescient": "#111111",
}


def main() -> None:
    """Read and draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "docs" / "shields.png")
    options = parser.parse_args()
    figure, panels = plt.subplots(1, len(options.files), figsize=(4.6 * len(options.files), 3.6), squeeze=False)
    for axes, file in zip(panels[0], options.files, strict=True):
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        panel(axes, [row for row in rows if "against" not in row])
        axes.set_title(file.stem.replace("-", " "), fontsize=10)
    figure.tight_layout()
    figure.savefig(options.out, dpi=130)


def panel(axes: Any, rows: list[dict[str, Any]]) -> None:
    """One mark for each row; those of a kind have its colour, hollow where the kind had a property of its own."""
    for kind in dict.fromkeys(row["kind"] for row in rows):
        name, _, own = kind.partition(":")
        ours = [row for row in rows if row["kind"] == kind]
        places = [[row[field] for row in ours] for field in ("override_rate", "violations")]
        colour = {"facecolors": "none"} if own else {"facecolors": COLOURS[name]}
        axes.scatter(*places, edgecolors=COLOURS[name], label=kind, **colour)
    axes.set_xlabel("override rate")
    axes.set_ylabel("violating frames per episode")
    axes.set_ylim(bottom=0)
    axes.legend(fontsize=8)


if __name__ == "__main__":
    main()
