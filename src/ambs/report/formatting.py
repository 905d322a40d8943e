"""Numbers as people read them; every table of a report writes them so."""

from typing import Any

VERDICTS = {
    "supported": "supported, also after Holm's correction",
    "alone": "by its own interval, not after Holm's correction",
    "not supported": "not supported",
    "no interval": "too few seeds for an interval",
}
BRIEF = {"supported": "yes", "alone": "only uncorrected", "not supported": "no", "no interval": "too few seeds"}


def number(value: float | None) -> str:
    """Four digits at most, thousands set apart, whole numbers whole; a dash for nothing."""
    if value is None:
        return "–"
    form = ",.0f" if abs(value) >= 999.95 or float(value).is_integer() else ".1f" if abs(value) >= 100 else ".3g"
    text = f"{value:{form}}"
    return text.replace("-", "−")


def interval(found: dict[str, Any] | None) -> str:
    """`mean [low, high]`, or the mean alone where there is no interval."""
    if found is None:
        return "–"
    return number(found["mean"]) + (f" {limits(found)}" if found["low"] is not None else "")


def limits(found: dict[str, Any]) -> str:
    """`[low, high]`."""
    return f"[{number(found['low'])}, {number(found['high'])}]"


def plus_minus(found: dict[str, Any]) -> str:
    """`mean ± half`, with the digits that the paper prints."""
    mean, half = found["mean"], found["half"]
    return f"{mean:,.0f} ± {half:,.0f}" if mean >= 1000 else f"{mean:.2f} ± {half:.2f}"


def share(value: float | None) -> str:
    """A probability in per cent; a dash for nothing."""
    return "–" if value is None else f"{value:.0%}"


def frames(value: int) -> str:
    """1,000,000 as 1M, others in full."""
    return f"{value / 1e6:g}M" if value >= 1_000_000 and value % 100_000 == 0 else f"{value:,}"


def seeds(count: int) -> str:
    """`1 seed`, `5 seeds`."""
    return f"{count} seed" if count == 1 else f"{count} seeds"


def said(row: dict[str, Any]) -> str:
    """A comparison's verdict in words that name the winner."""
    verdict = "supported" if row["verdict"] == "supported" and row["p"] == row["p_holm"] else VERDICTS[row["verdict"]]
    if row["verdict"] not in ("supported", "alone") or not row["better"]:
        return verdict
    more = row["difference"]["mean"] > 0
    winner = row["first"] if more == (row["better"] == "more") else row["second"]
    return f"{winner} is better: {verdict}"
