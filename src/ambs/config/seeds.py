"""Which seeds a fleet has, and which settings no fleet can have. No JAX here."""

from collections.abc import Sequence

from ambs.config.settings import Config
from ambs.errors import UserError

MOST = 64
"""Seeds of a fleet."""
HERE = "{seed}"
"""What stands for the seed in the name of a fleet's folder."""


def parse_seeds(text: str) -> tuple[int, ...]:
    """Seeds as in `0-4` or `0,2,5`."""
    seeds: list[int] = []
    for part in text.split(","):
        low, dash, high = part.strip().partition("-")
        if not (low.isdecimal() and (high.isdecimal() or not dash)):
            raise UserError(f"seeds must be whole numbers, such as 0-4 or 0,2,5, got {text!r}")
        first, last = int(low), int(high or low)
        if last < first:
            raise UserError(f"seeds must go from the lower to the higher, such as {last}-{first}, got {part.strip()}")
        seeds += range(first, min(last, first + MOST) + 1)
    return tuple(seeds)


def check_fleet(config: Config, seeds: Sequence[int]) -> None:
    """Refuse seeds that are none, too many or named twice, and what only a run by itself can do."""
    if not 1 <= len(seeds) <= MOST:
        raise UserError(f"a fleet must have 1 to {MOST} seeds, got {len(seeds) or 'none'}")
    twice = next((seed for index, seed in enumerate(seeds) if seed in seeds[:index]), None)
    if twice is not None:
        raise UserError(f"a fleet must have every seed once, and {twice} is named twice")
    refuse_alone(config, len(seeds))


def refuse_alone(config: Config, size: int) -> None:
    """Refuse what only a run by itself can do."""
    if config.guards:
        raise UserError(
            f"method {config.method} guards a policy that is given, and that answers one run: train its seeds one by one (--seed)"
        )
    if config.training.devices > 1 and size > 1:
        raise UserError(
            "seeds side by side share one device: leave out training.devices, or train seeds one by one (--seed)"
        )
    if config.training.wandb and size > 1:
        raise UserError(
            "Weights & Biases follows one run in a process: leave out training.wandb, or train seeds one by one"
        )
