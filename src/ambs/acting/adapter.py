"""Between worlds and networks: what an environment's spaces mean to the model, and rows for the replay buffer."""

import json
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from gymnasium import spaces

from ambs.acting.ranges import check_interface
from ambs.config import Config
from ambs.data import Experience
from ambs.envs.spaces import check_action_space, check_fallback, check_observation_space, parts_of
from ambs.envs.vector.vector import LabelledVectorEnv
from ambs.errors import UserError
from ambs.spec.formula import Atoms
from ambs.spec.parser import parse_formula
from ambs.storage.files import to_json
from ambs.world_model.model import WorldSpec
from ambs.world_model.vision import ObservationSpec

SURVEY_STEPS = 200
_KINDS = ("image", "vector", "channels", "unseen")
"""Of an observation, what no survey finds out."""
LEAST_DEVIATION = 0.1
"""Of an entry of the vector, in symlog scale: what hardly varies at random may do so later."""


@dataclass(frozen=True)
class Interface:
    """Translations for one environment."""

    spec: WorldSpec
    discrete: bool
    low: np.ndarray
    """Bounds of continuous actions `[actions]`; the policy's −1 … 1 is stretched to them."""
    high: np.ndarray
    seen: tuple[np.ndarray, np.ndarray] | None = None
    """Bounds of the observed vector, ±∞ where there are none; None: not known."""

    def to_dict(self) -> dict[str, Any]:
        """As plain data, for a checkpoint: an agent can be loaded where its environment is not."""
        spec = self.spec
        return {
            "observation": spec.observation._asdict(), "actions": spec.actions,
            "atoms": list(spec.atoms.names), "psi": str(spec.psi), "frames": spec.frames, "cost": spec.cost,
            "fallback": None if spec.fallback is None else list(spec.fallback), "discrete": self.discrete,
            "low": self.low.tolist(), "high": self.high.tolist(),
            "seen": None if self.seen is None else [_finite(bound) for bound in self.seen],
        }  # fmt: skip

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "Interface":
        """What `to_dict` wrote; a UserError if anything in it is out of range."""
        check_interface(data)
        atoms = Atoms(tuple(data["atoms"]))
        spec = WorldSpec(
            observation=_observation_spec(data["observation"]),
            actions=data["actions"],
            atoms=atoms,
            psi=parse_formula(data["psi"], atoms),
            frames=data["frames"],
            cost=data["cost"],
            fallback=None if data["fallback"] is None else tuple(data["fallback"]),
        )
        return cls(spec, data["discrete"], np.array(data["low"]), np.array(data["high"]), _seen(data.get("seen")))

    def as_surveyed(self, known: "Interface") -> "Interface":
        """This one with the other's standardisation of observations; a UserError if they differ in anything else.

        The bounds stay ours: a checkpoint has them as decimal numbers, and another dtype would round actions otherwise.
        """
        known = replace(known, seen=self.seen) if known.seen is None else known
        surveyed = replace(self, spec=self.spec._replace(observation=known.spec.observation))
        ours, theirs = (json.loads(to_json(one.to_dict())) for one in (surveyed, known))
        ours["observation"] |= {part: getattr(self.spec.observation, part) for part in _KINDS}
        for name, value in ours.items():
            if value != theirs[name]:
                raise UserError(f"the environment is not what it was: its {name} is {value}, and was {theirs[name]}")
        return surveyed

    def observe(self, raw: Any) -> dict[str, np.ndarray]:
        """Observations of n environments as the model takes them: `image` uint8 and/or `vector` float32."""
        if not isinstance(raw, dict):
            return {"image" if self.spec.observation.image else "vector": self._typed(np.asarray(raw))}
        parts = {("image" if np.asarray(part).ndim == 4 else "vector"): np.asarray(part) for part in raw.values()}
        return {name: self._typed(part) for name, part in parts.items()}

    def _typed(self, part: np.ndarray) -> np.ndarray:
        return part if part.dtype == np.uint8 else part.reshape(part.shape[0], -1).astype(np.float32)

    def to_env(self, actions: Any) -> Any:
        """What the environments execute, from the model's actions `[…, actions]`; arrays of NumPy or of JAX."""
        if self.discrete:
            return actions.argmax(axis=-1)
        unit = actions.clip(-1.0, 1.0)
        stretched = (self.low + (unit + 1) / 2 * (self.high - self.low)).astype(np.float32)
        return stretched.clip(*self._bounds())  # By rounding it can lie beyond them.

    def from_env(self, actions: np.ndarray) -> np.ndarray:
        """The environment's actions `[batch, …]` in the model's terms `[batch, actions]`: what `to_env` makes them of."""
        if self.discrete:
            return np.eye(self.spec.actions, dtype=np.float32)[np.asarray(actions, int)]
        span = np.where(self.high > self.low, self.high - self.low, 1)
        return (2 * (np.asarray(actions, float) - self.low) / span - 1).astype(np.float32)

    def allows(self, actions: np.ndarray) -> np.ndarray:
        """Which of the environment's actions `[batch, …]` are finite and within its bounds, in single precision."""
        if self.discrete:
            return (actions >= 0) & (actions < self.spec.actions)
        low, high = self._bounds()
        return np.asarray((np.isfinite(actions) & (actions >= low) & (actions <= high)).all(axis=-1))

    def last_resort(self) -> np.ndarray:
        """The environment's action of last resort, or zeros in the model's terms; refused if it is none either."""
        wanted = np.zeros(self.spec.actions) if self.spec.fallback is None else np.array(self.spec.fallback, float)
        action = np.asarray(self.to_env(wanted))
        if not (np.isfinite(wanted).all() and self.allows(action[None]).all()):
            raise UserError(f"there is no action to fall back on: bounds {self.low} to {self.high}, fallback {wanted}")
        return action

    def within(self, vector: np.ndarray) -> np.ndarray:
        """Which observed vectors `[batch, vector]` lie within the bounds of their space, in single precision."""
        if self.seen is None:
            return np.ones(vector.shape[0], bool)
        low, high = (bound.astype(np.float32) for bound in self.seen)
        return np.asarray(((vector >= low) & (vector <= high)).all(axis=1))

    def _bounds(self) -> tuple[np.ndarray, np.ndarray]:
        return self.low.astype(np.float32), self.high.astype(np.float32)

    def random(self, rng: np.random.Generator, count: int) -> np.ndarray:
        """Uniform actions `[count, actions]` in the model's terms."""
        if self.discrete:
            return np.eye(self.spec.actions, dtype=np.float32)[rng.integers(0, self.spec.actions, count)]
        return rng.uniform(-1, 1, (count, self.spec.actions)).astype(np.float32)

    def first_rows(self, raw: Any, infos: dict[str, Any], config: Config) -> Experience:
        """Rows of first observations."""
        count = infos["labels"].shape[0]
        no_action = np.zeros((count, self.spec.actions), np.float32)
        over = (np.zeros(count, bool), np.zeros(count, bool))
        return self.rows(raw, no_action, infos, over, config)

    def rows(
        self,
        raw: Any,
        actions: np.ndarray,
        infos: dict[str, Any],
        ended: tuple[np.ndarray, np.ndarray],
        config: Config,
    ) -> Experience:
        """Rows `[n, …]` for the replay buffer from what a step returned; `ended` is (terminated, truncated)."""
        fresh, valid = infos["fresh"], infos["frame_valid"]
        terminated, truncated = ended
        over = terminated | truncated if config.training.time_limit == "termination" else terminated
        # Frames that did not take place have the labels of the state that is shown.
        labels = np.where(valid[..., None], infos["frame_labels"], infos["labels"][:, None])
        fields: dict[str, Any] = {
            "observation": self.observe(raw),
            "action": np.where(fresh[:, None], 0, actions).astype(np.float32),
            "reward": (infos["frame_rewards"] * valid).sum(axis=1).astype(np.float32),
            "labels": labels,
            "proceed": (~over).astype(np.float32),
            "is_first": fresh.copy(),
        }
        return Experience(**fields)


def interface(envs: LabelledVectorEnv, config: Config, *, learning: bool = True) -> Interface:
    """Read the spaces of an environment; where nobody learns, they need not show what only the decoder meets."""
    observation = _observation(envs.single_observation_space)
    if learning and config.model.also_predict == "sensors":
        if config.obs != "vision" or not (observation.image and observation.vector):
            raise UserError(
                "also_predict=sensors is for agents that see pictures (obs vision) of a world that has a vector of sensors too"
            )
        observation = observation._replace(unseen=True)
    space: Any = envs.single_action_space
    check_action_space(space)
    if isinstance(space, spaces.Discrete):
        actions, low, high = int(space.n), np.zeros(1), np.ones(1)
    else:
        actions, low, high = space.shape[0], space.low, space.high
    spec = WorldSpec(
        observation=observation,
        actions=actions,
        atoms=envs.atoms,
        psi=envs.psi,
        frames=config.training.action_repeat,
        cost=config.safety.cost,
        fallback=_fallback(getattr(envs, "fallback_action", None), space),
    )
    return Interface(spec, isinstance(space, spaces.Discrete), low, high, _bounds_seen(envs.single_observation_space))


def survey(envs: LabelledVectorEnv, plain: Interface, seed: int) -> Interface:
    """Play at random, each action held for a while, and take note of how much the entries of the vector vary.

    Leaves the environments in need of a reset.
    """
    seen = plain.spec.observation
    if not seen.vector:
        return plain
    rng = np.random.default_rng(seed)
    raw, _ = envs.reset(seed=seed)
    vectors, action = [plain.observe(raw)["vector"]], plain.random(rng, envs.num_envs)
    for _ in range(SURVEY_STEPS):
        change = rng.uniform(size=envs.num_envs) < 0.2
        action = np.where(change[:, None], plain.random(rng, envs.num_envs), action)
        raw, *_ = envs.step(plain.to_env(action))
        vectors.append(plain.observe(raw)["vector"])
    values = np.concatenate(vectors).astype(float)
    values = np.sign(values) * np.log1p(np.abs(values))
    deviation = np.maximum(values.std(axis=0), LEAST_DEVIATION)
    known = seen._replace(mean=_floats(values.mean(axis=0)), deviation=_floats(deviation))
    return replace(plain, spec=plain.spec._replace(observation=known))


def _floats(values: np.ndarray) -> tuple[float, ...]:
    return tuple(float(value) for value in values.astype(np.float32))


def _observation_spec(data: dict[str, Any]) -> ObservationSpec:
    mean, deviation = tuple(data["mean"]), tuple(data["deviation"])
    # Checkpoints from before there was a second camera, or a vector that is not seen, do not tell.
    channels, unseen = data.get("channels", 3), data.get("unseen", False)
    return ObservationSpec(data["image"], data["vector"], mean, deviation, channels, unseen)


def _fallback(action: Any, space: Any) -> tuple[float, ...] | None:
    """The environment's action of last resort in the model's terms."""
    check_fallback(action, space)
    if action is None:
        return None
    if isinstance(space, spaces.Discrete):
        values = np.eye(int(space.n))[int(action)]
    else:
        low, high = space.low, space.high
        values = 2 * (np.asarray(action, float) - low) / np.where(high > low, high - low, 1) - 1
    return tuple(float(value) for value in values)


def _finite(bound: np.ndarray) -> list[float | None]:
    return [float(value) if np.isfinite(value) else None for value in bound]


def _seen(data: Any) -> tuple[np.ndarray, np.ndarray] | None:
    """What `_finite` made of bounds."""
    if data is None:
        return None
    low, high = (
        np.array([limit if value is None else value for value in part], float)
        for part, limit in zip(data, (-np.inf, np.inf), strict=True)
    )
    return low, high


def _bounds_seen(space: spaces.Space) -> tuple[np.ndarray, np.ndarray] | None:
    """Bounds of the part of an observation that is a vector."""
    for part in space.values() if isinstance(space, spaces.Dict) else (space,):
        if isinstance(part, spaces.Box) and len(part.shape) == 1:
            return part.low.astype(float), part.high.astype(float)
    return None


def _observation(space: spaces.Space) -> ObservationSpec:
    check_observation_space(space)
    image, vector, channels = 0, 0, 3
    for part in parts_of(space):
        shape = part.shape or ()
        if len(shape) == 3:
            image, channels = shape[0], shape[2]
        else:
            vector = shape[0]
    found = ObservationSpec(image, vector, channels=channels)
    found.check()
    return found
