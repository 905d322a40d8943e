"""What the world model expects to see: a strip of frames, the world's above, imagined ones below.

    python tools/open_loop.py RUN --out strip.png [--context 5] [--steps 20] [--seed 0]

The unshielded task policy drives. After `context` observed frames, of which the last five are drawn, the model imagines the
rest from the actions alone. The window is one in which the world violates Ψ, if the episode has one. A red edge above: violated;
below, the redder the likelier the model thinks it. `strip.json` beside it has those probabilities.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from PIL import Image

from ambs.acting.agent import Agent, load
from ambs.acting.worlds import make_envs
from ambs.inspector.recording import side_by_side

SCALE, EDGE = 2, 3


def main() -> None:
    """Drive, imagine, draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--context", type=int, default=5)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--every", type=int, default=2, help="draw every so many steps")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    agent = load(options.run)
    drive = play(agent, options.seed)
    length = options.context + options.steps
    violated = np.flatnonzero(drive["violated"][length:]) + length
    first = max(0, int(violated[0]) - options.context - options.steps // 2) if len(violated) else 0
    window = {name: part[first : first + length] for name, part in drive.items()}
    images, chances = imagine(agent, window, options.context)
    picture = strip(window, images, chances, options.every, max(0, options.context - 5))
    Image.fromarray(picture).save(options.out, optimize=True)
    facts = {"first": first, "violated": window["violated"].tolist(), "expected": np.round(chances, 4).tolist()}
    options.out.with_suffix(".json").write_text(json.dumps(facts) + "\n")


def play(agent: Agent, seed: int) -> dict[str, np.ndarray]:
    """One episode: images as seen, the action that led to each, whether Ψ was violated on the way."""
    envs = make_envs(agent.config, 1)
    agent.start(batch=1, seed=seed, shield=False)
    raw, _ = envs.reset(seed=seed)
    rows: list[tuple[Any, Any, Any]] = [(raw, np.zeros((1, agent.interface.spec.actions)), np.zeros(1, bool))]
    ended = False
    while not ended:
        decision = agent.act(raw)
        raw, _, terminated, truncated, infos = envs.step(decision.action)
        ended = bool(terminated[0] or truncated[0])
        rows.append((raw, agent.raw_action, infos["frame_violations"].any(axis=1)))
    envs.close()
    seen, actions, violated = zip(*rows[:-1], strict=True)  # The last image may be another episode's first.
    images = [agent.interface.observe(one)["image"][0] for one in seen]
    return {"image": np.stack(images), "action": np.concatenate(actions), "violated": np.concatenate(violated)}


def imagine(agent: Agent, window: dict[str, np.ndarray], context: int) -> tuple[np.ndarray, np.ndarray]:
    """Decoded images of the window, observed for `context` steps, and the chance of a violation in each."""
    model = agent.player.model

    @jax.jit
    def run(images: Any, actions: Any) -> Any:
        key = jax.random.key(0)
        latent, seen = model.rssm.initial(), []
        for step in range(len(window["action"])):
            own = jax.random.fold_in(key, step)
            if step < context:
                latent = model.encode(latent, actions[step], {"image": images[step]}, jnp.array(step == 0), own)
            else:
                latent = model.rssm.imagine(latent, actions[step], model.rssm.draw(own))
            features = latent.features
            seen.append((model.decoder(features)["image"], model.cost(features) / model.spec.cost))
        return tuple(jnp.stack(part) for part in zip(*seen, strict=True))

    images, chances = run(jnp.asarray(window["image"]), jnp.asarray(window["action"], jnp.float32))
    return np.clip(255 * np.asarray(images, np.float32), 0, 255).astype(np.uint8), np.asarray(chances, np.float32)


def strip(window: dict[str, np.ndarray], images: np.ndarray, chances: np.ndarray, every: int, start: int) -> np.ndarray:
    """Both rows from step `start` on, each frame with an edge between grey (safe) and red (violated)."""

    def framed(image: np.ndarray, chance: float) -> np.ndarray:
        large = image.repeat(SCALE, axis=0).repeat(SCALE, axis=1)
        edge = ((1 - chance) * np.array([90, 90, 90]) + chance * np.array([220, 30, 30])).astype(np.uint8)
        canvas = np.empty((*(side + 2 * EDGE for side in large.shape[:2]), 3), np.uint8)
        canvas[:] = edge
        canvas[EDGE:-EDGE, EDGE:-EDGE] = large
        return canvas

    rows = []
    for stored, odds in ((window["image"], window["violated"].astype(float)), (images, chances)):
        frames = side_by_side(stored)
        some = range(start, len(frames), every)
        rows.append(np.concatenate([framed(frames[i], float(np.clip(odds[i], 0, 1))) for i in some], axis=1))
    return np.concatenate(rows)


if __name__ == "__main__":
    main()
