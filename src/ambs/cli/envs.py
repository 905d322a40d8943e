"""`ambs envs`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Envs:
    """List the environments that come with ambs, a line each: id, safety formula, what it is."""

    json: bool = False
    """Print a JSON list instead."""

    def run(self) -> int:
        """Print the list."""
        import json

        import gymnasium

        from ambs.envs import registered

        rows = [describe(gymnasium.spec(env_id)) for env_id in registered()]
        if self.json:
            print(json.dumps(rows))
            return 0
        widths = [max(len(row[name]) for row in rows) for name in ("id", "psi")]
        for row in rows:
            print(f"{row['id']:{widths[0]}}  {row['psi']:{widths[1]}}  {row['summary']}")
        return 0


def describe(spec: Any) -> dict[str, str]:
    """Id, Ψ and a sentence about a registered environment."""
    from gymnasium.envs.registration import load_env_creator

    from ambs.errors import UserError

    if "task" in spec.kwargs:
        try:
            from ambs.envs.safety_gym.tasks import TASKS
        except UserError as error:
            return {"id": spec.id, "psi": "", "summary": str(error)}
        task = TASKS[spec.kwargs["task"]]
        return {"id": spec.id, "psi": task.psi, "summary": task.summary}
    env: Any = load_env_creator(spec.entry_point)()
    return {"id": spec.id, "psi": str(env.psi), "summary": env.summary}
