"""The paper's comparisons as a grid of runs: what they are, what is there of them, running the rest, showing them."""
