"""`ambs guarantee`: what the theorems promise at given settings, and what they leave open."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Guarantee:
    """Say what Theorems 1-3 promise for a shield with these settings: met, not met, or not measurable, and why.

    Example: ambs guarantee --safety-level .1 --approximation-error .09 --failure-probability .01 --horizon 30 --traces 512
    """

    safety_level: float = 0.1
    """Δ: an accepted action should keep the formula for the whole horizon with probability at least 1 − Δ."""
    approximation_error: float = 0.09
    """ε: how far the estimate may be off."""
    failure_probability: float = 0.01
    """δ: how often it may be off further, per decision."""
    horizon: int = 30
    """n: steps ahead that must be safe."""
    traces: int = 512
    """m: imagined futures per decision."""
    decisions: int = 500
    """Decisions in an episode, for the guarantee on all of them together (1000 frames at action repeat 2: 500)."""
    kl: float | None = None
    """A measured surrogate of the model's KL per step (nats), e.g. the world model's posterior-prior KL, shown beside the
    premise; being a surrogate, it never makes the premise count as met."""
    json: bool = False
    """Print one JSON object instead of a table."""

    def run(self) -> int:
        """Print the table or the JSON object."""
        from ambs.spec.guarantee import guarantee

        settings = dataclasses.asdict(self)
        settings.pop("json")
        report = guarantee(**settings)
        if self.json:
            print(json.dumps(report, allow_nan=False))
        else:
            _print_table(self, report)
        return 0


def _print_table(settings: Guarantee, report: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    one, two, accept = report["theorem1"], report["theorem2"], report["accept"]
    m, episode = settings.traces, settings.decisions
    table = Table(title="What the theorems say at these settings", title_justify="left", show_lines=True)
    for column in ("claim", "needs", "here", "verdict"):
        table.add_column(column, overflow="fold")

    def sampling(name: str, found: dict[str, Any], note: str) -> None:
        table.add_row(
            name,
            f"m ≥ {found['traces_needed']}\none-sided {found['traces_needed_one_sided']}\n"
            f"all {episode} decisions of an episode {found['traces_needed_per_episode']}",
            f"m = {m}\nε achieved {found['epsilon_achieved']:.4g} at δ = {settings.failure_probability:g}\n"
            f"δ achieved {found['delta_achieved']:.4g} at ε = {settings.approximation_error:g}",
            ("[green]met[/]" if found["met"] else "[red]not met[/]") + note,
        )

    sampling("Theorem 1\nsampling the true system", one, "\nif the traces come from the true system")
    sampling("Theorem 2\nsampling a model of it", two, "\nby the number of traces alone")
    binary = ", ".join(f"{value:.3g} ({count} violating)" for count, value in two["alpha_needed_binary_kl"].items())
    split = two["alpha_needed_unequal_split"]
    table.add_row(
        "Theorem 2's premise\nKL of one model step ≤ α",
        f"α ≤ {two['alpha_needed']:.3g} as printed\n{two['alpha_needed_chain_rule']:.3g} by the KL chain rule\n"
        + (f"{split:.3g} with what m leaves of ε\n" if split is not None else "")
        + f"{binary} by exact binomial",
        "no surrogate given (--kl)" if settings.kl is None else f"surrogate {settings.kl:.3g} nats per step",
        "[yellow]not measurable[/]\nthe true system's step distribution is unknown; "
        "a world model's posterior-prior KL is only a surrogate",
    )
    table.add_row(
        "Theorem 3\npartial observability",
        "the same premise, on belief states",
        "",
        "[yellow]not measurable[/]\nfor the same reason; what holds of beliefs then holds of states",
    )
    odds = ", ".join(f"{chance:.3g} if μ̂ = {mu}" for mu, chance in accept["probability_at"].items())
    table.add_row(
        "Accept rule, fixed m",
        f"at most {accept['max_violating']} violating of {accept['traces']}",
        f"P(accept) {odds}",
        "exact",
    )
    console = Console()
    console.print(table)
    console.print(
        f"Δ = {settings.safety_level:g}, ε = {settings.approximation_error:g}, δ = {settings.failure_probability:g} per "
        f"decision, n = {settings.horizon}. The theorems speak of the full-horizon shield without critics.",
        highlight=False,
    )
