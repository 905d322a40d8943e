"""The environments of a run, and whose word it takes to run an environment's code: a run folder's own is not enough.

Settings may name `module:factory`, and making that environment imports and runs the module. Who reads a folder from elsewhere
has not asked for that: the user names the environment again, or says that the folder is trusted.
"""

from collections.abc import Callable
from typing import Any

import gymnasium

from ambs.config import Config
from ambs.envs.contract import load_factory
from ambs.envs.registration import SMALL_WORLDS, full_id, make_vector
from ambs.envs.vector.vector import LabelledVectorEnv
from ambs.errors import UserError

GIVEN = "given"
"""Name of an environment that a function of the user's own program makes; it has no other."""
Make = Callable[[], Any]


def make_envs(
    config: Config, count: int | None = None, *, learning: bool = False, make: Make | None = None
) -> LabelledVectorEnv:
    """The environments of a run; for learning they show what the decoder must reconstruct, too.

    `make` makes one of an environment that has no name (`GIVEN`); they then run in this process, for such a function can rarely
    be sent to another.
    """
    training = config.training
    common: dict[str, Any] = {
        "spec": config.psi,
        "action_repeat": training.action_repeat,
        "max_faults": training.max_faults,
    }
    if make is not None:
        return make_vector(make, count or training.envs, serial=True, **common)
    if config.env == GIVEN:
        raise UserError(
            "this run's environment was made by a function of the program that trained it: pass that again (make=…), or name it "
            "(--env module:function)"
        )
    # Ours run in this process, where nothing can be killed.
    options: dict[str, Any] = {"timeout": training.env_timeout} if ":" in config.env else {}
    # Only Safety Gym's worlds have the option; others say so.
    options |= {"cameras": config.cameras} if config.cameras != "front" else {}
    return make_vector(
        config.env,
        count or training.envs,
        observation="both" if learning and _show_more(config) else config.obs,
        **common,
        **options,
    )


def as_deployed(config: Config, seen: Any) -> Any:
    """What worlds that are learned from show, or its space, without what only the decoder meets: as other worlds show it."""
    return seen["vision"] if _show_more(config) else seen


def _show_more(config: Config) -> bool:
    """Whether worlds that are learned from show sensors beside the pictures; who made a world himself shows what he likes."""
    ours = config.env != GIVEN and not is_foreign(config.env)
    return ours and config.obs == "vision" and config.model.also_predict == "sensors"


def check_world(config: Config, named: str | None, *, trust: bool = False) -> None:
    """Refuse the environment that a folder names, unless it is one of ours or the user has `named` it, too, or said `trust`.

    `trust` does not extend to modules that lie in the working directory, where the folder may have come with them.
    """
    if config.env == GIVEN and named is not None and is_foreign(named):
        return  # The folder has no name to compare it with; what it makes is compared with what the agent was made for.
    if named is not None and _id(named) != _id(config.env):
        raise UserError(f"the run is one of {config.env}, and cannot go on in {named}")
    if is_foreign(config.env) and named is None:
        if not trust:
            raise UserError(
                f"this run folder names the environment {config.env}, and making it would run that module's code: name it "
                f"yourself (--env {config.env}), or say that you trust the folder (--trust)"
            )
        load_factory(config.env, here=False)


def is_foreign(env: str) -> bool:
    """Whether making this environment runs code that is none of ours."""
    return ":" in env


def title(env: str) -> str:
    """What sentences call it."""
    return "the environment" if env == GIVEN else env


def is_small(env: str) -> bool:
    """Whether this is one of our small worlds as it is."""
    ours = env != GIVEN and not is_foreign(env)
    return ours and gymnasium.spec(full_id(env)).entry_point in SMALL_WORLDS.values()


def worlds_of(config: Config, named: str | None, trust: bool, count: int) -> LabelledVectorEnv:
    """So many environments of a run that was read from a folder; else as `check_world`."""
    check_world(config, named, trust=trust)
    return make_envs(config, count, make=function_of(config, named))


def function_of(config: Config, named: str | None) -> Make | None:
    """The function that makes the worlds of a run whose environment has no name, where it is named now; else None."""
    return load_factory(named) if config.env == GIVEN and named is not None else None


def _id(env: str) -> str:
    return env if is_foreign(env) or env == GIVEN else full_id(env)
