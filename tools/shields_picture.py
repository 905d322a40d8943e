"""Draw docs/shields.png of what `benchmarks/shields.py` printed: violations against overrides, a mark for each agent and kind.

python tools/shields_picture.py results/shields/point-{world-3-steps,world-8-steps,goal-sensors,goal-pixels}.jsonl
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
    lines = -(-len(options.files) // 2)
    figure, panels = plt.subplots(lines, 2, figsize=(9.2, 3.6 * lines), squeeze=False)
    for axes in panels.flat[len(options.files) :]:
        axes.set_visible(False)
    for axes, file in zip(panels.flat, options.files, strict=False):
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
