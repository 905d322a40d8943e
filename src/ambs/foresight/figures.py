"""Figures of merit of a score for danger: pure statistics on plain arrays, with intervals by bootstrap over episodes.

Rows are states in the order in which they were played. A state *fails within n* if Ψ fails in one of the n steps after it, and
is *safe* if Ψ holds in all of them; where the episode was cut short before either was known, and where Ψ is violated already,
the state is left out of everything.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from ambs.spec.bounds import clopper_pearson

LEADS = (1, 5, 10, 20)
"""Steps before an entry at which detection is told."""
FALSE_ALARMS = (0.01, 0.05, 0.1)
"""Shares of safe states at which it is told."""
BINS = 10
DRAWS = 500
"""Of the bootstrap."""


class Truth(NamedTuple):
    """What happened after each state."""

    ahead: np.ndarray
    """Steps until Ψ first fails, 1 … n; 0: not within n, int `[rows]`."""
    counts: np.ndarray
    """Whether the state counts, bool `[rows]`."""
    whole: np.ndarray
    """Whether all n steps after it were played, or all that the world had, bool `[rows]`."""

    @property
    def fails(self) -> np.ndarray:
        """Counting states after which Ψ fails within n."""
        return self.counts & (self.ahead > 0)

    @property
    def safe(self) -> np.ndarray:
        """Counting states after which it does not."""
        return self.counts & (self.ahead == 0)


def truth(episode: np.ndarray, unsafe_now: np.ndarray, violated: np.ndarray, over: np.ndarray, steps: int) -> Truth:
    """What the `steps` steps after each state brought; `over` marks steps with which the world itself ended, as opposed to
    a time limit: after these nothing can fail."""
    rows = len(episode)
    ahead = np.zeros(rows, int)
    last = np.append(np.flatnonzero(np.diff(episode)), rows - 1)
    ends = last[np.searchsorted(last, np.arange(rows))]
    for step in range(steps, 0, -1):
        there = np.arange(rows) + step - 1
        inside = there <= ends
        ahead[inside & violated[np.minimum(there, rows - 1)]] = step
    whole = (np.arange(rows) + steps - 1 <= ends) | over[ends]
    return Truth(ahead, (whole | (ahead > 0)) & ~unsafe_now, whole)


def score_figures(score: np.ndarray, known: Truth, episode: np.ndarray, steps: int) -> dict[str, Any]:
    """AUROC, and shares flagged at fixed false alarms of all states that fail within n and of those k steps before."""
    leads = [lead for lead in LEADS if lead <= steps]
    sets = [known.fails, *(known.counts & (known.ahead == lead) for lead in leads)]
    rows = [np.flatnonzero(one) for one in sets]
    place, size = _places(score)

    def figures(weight: np.ndarray) -> np.ndarray:
        safe, fails = (np.bincount(place, weight * one, size) for one in (known.safe, known.fails))
        cuts = [cut(safe, rate) for rate in FALSE_ALARMS]
        shares = [share_above(place[own], weight[own], *limit) for own in rows for limit in cuts]
        return np.array([auroc_of_counts(safe, fails), *shares])

    found = bootstrap(figures, episode)
    names = ["auroc", *(f"{which}@{rate}" for which in ("window", *leads) for rate in FALSE_ALARMS)]
    values = dict(zip(names, found, strict=True))
    return {
        "auroc": values["auroc"],
        "flagged_windows": {str(rate): values[f"window@{rate}"] for rate in FALSE_ALARMS},
        "detection": {
            str(lead): {
                "states": len(rows[1 + index]),
                **{str(rate): values[f"{lead}@{rate}"] for rate in FALSE_ALARMS},
            }
            for index, lead in enumerate(leads)
        },
        "thresholds": {str(rate): _number(threshold(score[known.safe], rate)) for rate in FALSE_ALARMS},
    }


def calibration_figures(chance: np.ndarray, known: Truth, episode: np.ndarray) -> dict[str, Any]:
    """Expected calibration error and Brier score of probabilities of failure, with the bins of the reliability diagram."""
    chance, fails, episode = chance[known.counts], known.fails[known.counts], episode[known.counts]

    def figures(weight: np.ndarray) -> np.ndarray:
        return np.array([calibration_error(chance, fails, weight), brier(chance, fails, weight)])

    error, score = bootstrap(figures, episode)
    mean = {"predicted": _mean(chance), "observed": _mean(fails)}
    return {"ece": error, "brier": score, **mean, "reliability": reliability(chance, fails)}


def step_figures(chance: np.ndarray, happened: np.ndarray, episode: np.ndarray) -> list[dict[str, Any]]:
    """For every step ahead how well P(that step violates Ψ) `[states, n]` foresaw whether it did."""
    rows = []
    for step in range(chance.shape[1]):
        own, truly = chance[:, step], happened[:, step]
        area, error = bootstrap(_step_figures(own, truly), episode, draws=200)
        means = {"predicted": _mean(own), "observed": _mean(truly)}
        rows.append({"step": step + 1, "auroc": area, "ece": error, **means})
    return rows


def cost_figures(
    episode: np.ndarray,
    cost: np.ndarray,
    imagined: np.ndarray,
    critic: np.ndarray,
    known: Truth,
    steps: int,
    discount: float,
) -> dict[str, Any]:
    """Means of the discounted cost after states in which Ψ holds: of n steps, imagined and real, and of all that follow, by
    the critic's word and as far as the episode was played; with correlations."""
    use = known.counts & known.whole
    near, all_of_it = (discounted(episode, cost, discount, limit)[use] for limit in (steps, None))
    return {
        "states": int(use.sum()),
        "imagined": _mean(imagined[use]),
        "real": _mean(near),
        "correlation": correlation(imagined[use], near),
        "critic": _mean(critic[use]),
        "real_to_the_end": _mean(all_of_it),
        "critic_correlation": correlation(critic[use], all_of_it),
    }


def discounted(episode: np.ndarray, cost: np.ndarray, discount: float, steps: int | None) -> np.ndarray:
    """Σ_k γ^(k−1)·c_k over the next `steps` steps of each row's episode, or over all of them."""
    total = np.zeros(len(cost) + 1)
    goes_on = np.append(episode[1:] == episode[:-1], False)
    for row in range(len(cost) - 1, -1, -1):
        total[row] = cost[row] + discount * total[row + 1] * goes_on[row]
    if steps is None:
        return total[:-1]
    later = np.minimum(np.arange(len(cost)) + steps, len(cost) - 1)
    inside = (np.arange(len(cost)) + steps < len(cost)) & (episode[later] == episode)
    return total[:-1] - discount**steps * total[later] * inside


def correlation(a: np.ndarray, b: np.ndarray) -> float | None:
    """Pearson's; None where one of them does not vary."""
    if len(a) < 2 or np.ptp(a) == 0 or np.ptp(b) == 0:
        return None
    return _number(np.corrcoef(a, b)[0, 1])


def agreement(chance: np.ndarray, real: np.ndarray, futures: int) -> dict[str, Any]:
    """Predicted risks against shares of so many real futures that failed, each with its own state.

    `chance_error` is what the mean absolute error would be by the luck of the futures alone, were every prediction right.
    """
    luck = np.sqrt(2 * chance * (1 - chance) / (np.pi * futures))
    return {
        "error": _mean(np.abs(chance - real)),
        "chance_error": _mean(luck),
        "correlation": correlation(chance, real),
        "ece": _number(calibration_error(chance, real)),
        "predicted": _mean(chance),
        "observed": _mean(real),
    }


def auroc(score: np.ndarray, fails: np.ndarray) -> float:
    """Probability that a state that fails scores above one that does not; ties count half. NaN if there is no pair."""
    place, size = _places(score)
    fails = np.asarray(fails, bool)
    return auroc_of_counts(*(np.bincount(place, one.astype(float), size) for one in (~fails, fails)))


def auroc_of_counts(safe: np.ndarray, fails: np.ndarray) -> float:
    """The same from numbers of states per score, scores ascending."""
    pairs = safe.sum() * fails.sum()
    below = np.cumsum(safe) - safe / 2
    return float((fails * below).sum() / pairs) if pairs else float("nan")


def cut(safe: np.ndarray, rate: float) -> tuple[int, float]:
    """The place among ascending scores above which all is flagged, and the part flagged there, so that of the safe states, of
    which there are so many at every score, `rate` are."""
    if not safe.sum():
        return -1, float("nan")
    allowed = rate * safe.sum()
    above = np.cumsum(safe[::-1])
    whole = int(np.searchsorted(above, allowed, side="right"))
    if whole == len(safe):
        return -1, 0.0
    here = len(safe) - 1 - whole
    return here, float((allowed - (above[whole - 1] if whole else 0.0)) / safe[here])


def share_above(place: np.ndarray, weight: np.ndarray, here: int, part: float) -> float:
    """Share of weighted states that lie above a cut."""
    total = weight.sum()
    return float((weight * ((place > here) + part * (place == here))).sum() / total) if total else float("nan")


def threshold(safe_scores: np.ndarray, rate: float) -> float:
    """The score above which `rate` of the safe states lie."""
    return float(np.quantile(safe_scores, 1 - rate, method="inverted_cdf")) if safe_scores.size else float("nan")


def reliability(chance: np.ndarray, happened: np.ndarray) -> list[dict[str, Any]]:
    """Ten equal bins: mean prediction, observed share with its exact 95 % interval (as if states were independent)."""
    rows = []
    which = _bin(chance)
    for index in range(BINS):
        own = which == index
        count, hits = int(own.sum()), int(happened[own].sum())
        row: dict[str, Any] = {"from": index / BINS, "to": (index + 1) / BINS, "states": count}
        if count:
            low, high = clopper_pearson(count, np.array([count - hits]), 0.05)
            row |= {"predicted": float(chance[own].mean()), "observed": hits / count}
            row |= {"low": float(low[0]), "high": float(high[0])}
        rows.append(row)
    return rows


def calibration_error(chance: np.ndarray, happened: np.ndarray, weight: np.ndarray | None = None) -> float:
    """Σ_bins share of states · |mean prediction − observed share|, ten equal bins."""
    weight = np.ones(len(chance)) if weight is None else weight
    which = _bin(chance)
    gaps = np.bincount(which, weight * (chance - happened), BINS)
    total = weight.sum()
    return float(np.abs(gaps).sum() / total) if total else float("nan")


def brier(chance: np.ndarray, happened: np.ndarray, weight: np.ndarray | None = None) -> float:
    """Mean squared difference of prediction and outcome."""
    weight = np.ones(len(chance)) if weight is None else weight
    total = weight.sum()
    return float((weight * (chance - happened) ** 2).sum() / total) if total else float("nan")


def bootstrap(
    figures: Callable[[np.ndarray], np.ndarray], episode: np.ndarray, draws: int = DRAWS, seed: int = 0
) -> list[dict[str, float | None]]:
    """Figures of weighted rows, each with its 95 % percentile interval when episodes are drawn with replacement.

    No interval from a single episode, nor where a figure does not exist in most draws.
    """
    names, which = np.unique(episode, return_inverse=True)
    whole = figures(np.ones(len(episode)))
    rng = np.random.default_rng(seed)
    limits = np.full((2, len(whole)), np.nan)
    if len(names) > 1:
        drawn = [
            figures(np.bincount(rng.integers(0, len(names), len(names)), minlength=len(names))[which].astype(float))
            for _ in range(draws)
        ]
        table = np.stack(drawn)
        enough = np.isfinite(table).sum(axis=0) > draws / 2
        limits[:, enough] = np.nanquantile(table[:, enough], [0.025, 0.975], axis=0)
    return [
        {"mean": _number(mean), "low": _number(low), "high": _number(high)}
        for mean, low, high in zip(whole, *limits, strict=True)
    ]


def _step_figures(chance: np.ndarray, happened: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    place, size = _places(chance)

    def figures(weight: np.ndarray) -> np.ndarray:
        area = auroc_of_counts(*(np.bincount(place, weight * one, size) for one in (~happened, happened)))
        return np.array([area, calibration_error(chance, happened, weight)])

    return figures


def _places(score: np.ndarray) -> tuple[np.ndarray, int]:
    """The place of every score among all that occur, ascending, and how many do: weighted figures then need no sorting."""
    values, place = np.unique(score, return_inverse=True)
    return place, len(values)


def _bin(chance: np.ndarray) -> np.ndarray:
    return np.clip((np.asarray(chance) * BINS).astype(int), 0, BINS - 1)


def _mean(values: np.ndarray) -> float | None:
    return float(np.mean(values)) if len(values) else None


def _number(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
