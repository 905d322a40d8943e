"""`ambs envs`."""

from __future__ import annotations

from dataclasses import dataclass


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


def describe(spec: object) -> dict[str, str]:
    """Id, Ψ and a sentence about a registered environment."""
    from ambs.envs.safety_gym.tasks import TASKS

    task = TASKS.get(getattr(spec, "kwargs", {}).get("task", ""))
    row = {"id": str(getattr(spec, "id", "")), "psi": "", "summary": ""}
    if task is None:
        summary = getattr(spec, "kwargs", {}).get("summary", "")
        return {**row, "summary": str(summary)}
    return {**row, "psi": task.psi, "summary": task.summary}
