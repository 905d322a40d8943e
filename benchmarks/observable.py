"""How much of what happens could be foreseen from what the agent is shown, by somebody who has seen far more of it?

    python benchmarks/observable.py RUN [--horizons 3 8] [--episodes 3000] [--judged 208] [--seed 7] [--places]

The run's task policy plays fresh worlds with the shield off. A network of its own (no world model: it is told the last
`--memory` observations and proposed actions, and whether Ψ then failed within n steps) learns from `--episodes` of them, keeps
what does best in a tenth of them, and is judged in `--judged` worlds of another seed, in which the run's own imagination is
judged as well. What it reaches is a floor of what can be foreseen from there; what lies above may be chance, or beyond the
sensors. With `--places` it is also told where all things are, beyond the sensors' reach. Observations are vectors. Prints JSON
lines.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

from ambs.acting.agent import Agent, load
from ambs.acting.evaluate import evaluate
from ambs.envs.scene import Scene
from ambs.errors import UserError
from ambs.foresight.collect import play
from ambs.foresight.figures import score_figures, truth
from ambs.foresight.measure import with_horizon

WIDTH, BATCH, EPOCHS = 256, 512, 30
ENVS = 16
"""Played at once."""
JUDGING = 1_000_000
"""Added to the seed of the worlds that are learned from."""


class Played(NamedTuple):
    """Agent steps, row by row: what was known when the action had been proposed `[rows, …]`, and what came of it."""

    known: np.ndarray
    episode: np.ndarray
    unsafe_now: np.ndarray
    violated: np.ndarray
    over: np.ndarray


def main() -> None:
    """Play, learn, judge, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--horizons", type=int, nargs="+", default=[3, 8], help="steps ahead")
    parser.add_argument("--episodes", type=int, default=3000, help="to learn from")
    parser.add_argument("--judged", type=int, default=208, help="episodes to judge by")
    parser.add_argument("--memory", type=int, default=16, help="steps that the network is told")
    parser.add_argument("--seed", type=int, default=7, help="of the worlds that are judged")
    parser.add_argument("--places", action="store_true", help="tell the network where all things are")
    options = parser.parse_args()
    begun, agent = time.perf_counter(), load(options.run)
    learned_from = collect(agent, options.episodes, options.seed + JUDGING, options)
    judged = collect(agent, options.judged, options.seed, options)
    fails = [truth(*learned_from[1:], steps) for steps in options.horizons]
    network = fit(learned_from, fails)
    said = answers(network, judged.known)
    for column, steps in enumerate(options.horizons):
        told = {"run": options.run.name, "horizon": steps, "episodes": options.episodes, "judged": options.judged}
        told |= {
            "states": len(judged.episode),
            "memory": options.memory,
            "seed": options.seed,
            "places": options.places,
        }
        print(json.dumps({**told, "network": figures(said[:, column], judged, steps)}), flush=True)
        if options.places:
            continue
        own = play(with_horizon(agent, steps), episodes=options.judged, seed=options.seed, traces=64, batch=ENVS)
        assert np.array_equal(own.violated, judged.violated), "the same worlds were played differently"
        seconds = round(time.perf_counter() - begun)
        print(json.dumps({**told, "imagination": figures(own.risk, judged, steps), "seconds": seconds}), flush=True)


def collect(agent: Agent, episodes: int, seed: int, options: argparse.Namespace) -> Played:
    """Play that many episodes, and take down what could be known."""
    watch = Notes(agent, options.places)
    rows = evaluate(agent, episodes, seed=seed, shield=False, watch=watch, batch=ENVS)
    return watch.played_rows({row["episode"] for row in rows if row["ended"] == "terminated"}, options.memory)


class Notes:
    """Takes notes of every step, an entry per environment."""

    def __init__(self, agent: Agent, places: bool) -> None:
        self.agent, self.places = agent, places
        self.batches: dict[int, list[dict[str, np.ndarray]]] = {}

    def decided(self, first: int, seen: dict[str, Any]) -> None:
        agent = self.agent
        vector = seen["observation"]
        if not isinstance(vector, np.ndarray) or vector.ndim != 2:
            raise UserError("only observations that are vectors can be judged so")
        psi, atoms = agent.interface.spec.psi, agent.interface.spec.atoms
        note = {"live": np.isin(np.arange(agent.batch), seen["live"])}
        note["unsafe_now"] = ~psi.holds(np.asarray(seen["labels"]), atoms)
        note["shown"] = np.concatenate([vector, np.asarray(agent.raw_proposed, np.float32)], axis=1)
        if self.places:
            scenes = seen["envs"].scenes(range(agent.batch))
            note["places"] = np.stack([where(scenes[env]) for env in range(agent.batch)])
        self.batches.setdefault(first, []).append(note)

    def stepped(self, first: int, seen: dict[str, Any]) -> None:
        self.batches[first][-1]["violated"] = seen["infos"]["frame_violations"].any(axis=1)

    def played(self, first: int, envs: Any) -> None:
        pass

    def played_rows(self, terminated: set[int], memory: int) -> Played:
        """All notes, episode after episode."""
        parts: list[Played] = []
        for first, notes in sorted(self.batches.items()):
            lengths = np.sum([note["live"] for note in notes], axis=0)
            for env in np.flatnonzero(lengths).tolist():
                own = notes[: int(lengths[env])]
                column = {name: np.stack([note[name][env] for note in own]) for name in own[0] if name != "live"}
                over = np.zeros(len(own), bool)
                over[-1] = first + env in terminated
                known = remembered(column["shown"], memory)
                known = np.concatenate([known, column["places"]], axis=1) if self.places else known
                number = np.full(len(own), len(parts))
                parts.append(Played(known, number, column["unsafe_now"], column["violated"], over))
        return Played(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def where(scene: Scene) -> np.ndarray:
    """Where the robot is, and from there all things, the nearest of each kind first, `[2 + 2 · things]` (m)."""
    away = scene.items[:, 1:3] - scene.robot[:2]
    order = np.lexsort((np.hypot(*away.T), scene.items[:, 0]))
    return np.concatenate([scene.robot[:2], away[order].ravel()]).astype(np.float32)


def remembered(shown: np.ndarray, memory: int) -> np.ndarray:
    """The last `memory` rows up to each row, newest first, zeros before the first, `[rows, memory · numbers]`."""
    padded = np.concatenate([np.zeros((memory - 1, shown.shape[1]), shown.dtype), shown])
    return np.concatenate([padded[memory - 1 - back : len(padded) - back] for back in range(memory)], axis=1)


def fit(played: Played, known: list[Any]) -> Any:
    """A network from what is known to the logits of failing within each horizon; that of the best epoch in held-out episodes."""
    wanted = np.stack([one.ahead > 0 for one in known], axis=1).astype(np.float32)
    counts = np.stack([one.counts for one in known], axis=1).astype(np.float32)
    held = played.episode % 10 == 0
    rows = np.flatnonzero(~held & counts.any(axis=1))
    mean, deviation = played.known[rows].mean(axis=0), played.known[rows].std(axis=0) + 1e-3
    inner = eqx.nn.MLP(played.known.shape[1], len(known), WIDTH, 2, key=jax.random.key(0))
    optimiser = optax.adamw(optax.cosine_decay_schedule(1e-3, EPOCHS * (len(rows) // BATCH)), weight_decay=1e-3)
    state = optimiser.init(eqx.filter(inner, eqx.is_array))

    @eqx.filter_jit
    def step(inner: Any, state: Any, x: Any, y: Any, counts: Any) -> Any:
        def loss(inner: Any) -> Any:
            each = optax.sigmoid_binary_cross_entropy(jax.vmap(inner)(x), y)
            return (each * counts).sum() / counts.sum()

        value, gradient = eqx.filter_value_and_grad(loss)(inner)
        change, state = optimiser.update(gradient, state, eqx.filter(inner, eqx.is_array))
        return eqx.apply_updates(inner, change), state, value

    rng, best = np.random.default_rng(0), (np.inf, None)
    for _ in range(EPOCHS):
        order = rng.permutation(rows)
        for first in range(0, len(order) - BATCH + 1, BATCH):
            some = order[first : first + BATCH]
            x = (played.known[some] - mean) / deviation
            inner, state, _ = step(inner, state, x, wanted[some], counts[some])
        network = (inner, mean, deviation)
        said = answers(network, played.known[held])
        loss = np.logaddexp(0, said) - wanted[held] * said
        best = min(best, (float((loss * counts[held]).sum()), network), key=lambda one: one[0])
    return best[1]


def answers(network: Any, known: np.ndarray) -> np.ndarray:
    """Logits `[rows, horizons]`."""
    inner, mean, deviation = network
    apply = eqx.filter_jit(eqx.filter_vmap(inner))
    parts = [apply(jnp.asarray((some - mean) / deviation)) for some in np.array_split(known, len(known) // 4096 + 1)]
    return np.concatenate([np.asarray(part) for part in parts])


def figures(score: np.ndarray, played: Played, steps: int) -> dict[str, Any]:
    """AUROC, and shares flagged at 5 % false alarms."""
    found = score_figures(score, truth(*played[1:], steps), played.episode, steps)
    return {"auroc": found["auroc"], "flagged": found["flagged_windows"]["0.05"]}


if __name__ == "__main__":
    main()
