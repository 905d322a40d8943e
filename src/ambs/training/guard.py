"""Learning a shield around a policy that exists already: it acts, and what guards it is learned."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ambs.acting.worlds import GIVEN, Make
from ambs.config.checks import folder
from ambs.config.resolve import changed, resolve
from ambs.errors import UserError
from ambs.training.observers import Row, shown_to
from ambs.training.session import run_to_the_end, start
from ambs.training.signals import stopping


def train_shield(
    make: Make | str,
    *,
    policy: Any,
    spec: str | None = None,
    frames: int | None = None,
    out: Path | str | None = None,
    preset: str = "guard",
    seed: int = 0,
    on_metrics: Callable[[Row], None] | None = None,
    **changes: Any,
) -> Path:
    """Learn what guards a policy, with the policy as it is, and return the run folder (`ambs.load(run).guard(policy)`).

    `make` makes a labelled environment (`ambs.with_labels`), or is the name of one; it need not be one that can be saved.
    `policy` has `predict` as Stable-Baselines3's have, or is a function of an observation. It proposes at every step, and its own
    parameters are not touched; world model, label heads, critics, backup policy and a clone of it, which acts in imagination,
    are learned from `frames` steps. `spec` is the property to keep, such as "P>=0.9 [ G<=20 !hazard ]", counted in the policy's
    own steps. `changes` are groups of settings by name, as `training={"envs": 8}`. Ctrl-C saves first, and ends in a
    KeyboardInterrupt.
    """
    if policy is None:
        raise UserError("train_shield needs the policy that is to be guarded (policy=…)")
    if not isinstance(make, str) and not callable(make):
        raise UserError(f"train_shield takes a function that makes an environment, or the name of one, got {make!r}")
    place, named = folder("out", "runs" if out is None else out), isinstance(make, str)
    observers = [] if on_metrics is None else [shown_to(on_metrics)]
    groups = {"env": make if named else GIVEN, "seed": seed, **changes}
    config = resolve(preset, method="guard", spec=spec, changes=groups, say=warnings.warn)
    if frames is not None:
        config = changed(config, {"training": {"frames": frames}})
    config.refuse_futile()
    with stopping() as stop:
        session = start(
            config,
            place,
            observers=observers,
            stop=stop,
            policy=policy,
            make=None if isinstance(make, str) else make,
        )
        return run_to_the_end(session)
