"""`ambs verify golden FILE.npz`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import tyro


@dataclass(frozen=True)
class Verify:
    """Check our worlds against recordings of the originals: one step from every recorded state.

    Exits with 0 if everything is as faithful as it should be, and with 1 and the reasons if not.
    """

    what: tyro.conf.Positional[Literal["golden"]]
    """What to check: "golden" recordings of the stock Safety Gym environments."""
    file: tyro.conf.Positional[str]
    """The recording, a .npz file."""
    json: bool = False
    """Print one JSON object instead of a table."""

    def run(self) -> int:
        """Replay, report, judge."""
        import json

        from ambs.envs.safety_gym import golden

        report = golden.replay(golden.load(self.file))
        reasons, remarks = golden.shortcomings(report), golden.remarks(report)
        if self.json:
            print(json.dumps({**report, "faithful": not reasons, "shortcomings": reasons, "remarks": remarks}))
            return int(bool(reasons))
        for name, value in report.items():
            print(f"{name:36} {'-' if value is None else f'{value:.6g}' if isinstance(value, float) else value}")
        for remark in remarks:
            print(f"note: {remark}")
        for reason in reasons:
            print(f"not faithful: {reason}")
        return int(bool(reasons))
