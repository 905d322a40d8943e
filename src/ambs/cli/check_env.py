"""`ambs check-env module:factory`."""

from __future__ import annotations

from dataclasses import dataclass

import tyro


@dataclass(frozen=True)
class CheckEnv:
    """Walk an environment of your own through what ambs expects of it, and explain each failure in a sentence.

    Exits with 0 if it passes everything, and with 1 if not.
    """

    factory: tyro.conf.Positional[str]
    """module:factory, a function without arguments that makes the environment; modules in the current folder count."""

    def run(self) -> int:
        """Check, and print what was found."""
        from ambs.envs.contract import load_factory, walk

        passed = True
        for finding in walk(load_factory(self.factory)):
            told = finding.problem or finding.remark
            print(f"{'ok    ' if finding.ok else 'FAILED'}  {finding.check}{f': {told}.' if told else ''}")
            passed = passed and finding.ok
        return 0 if passed else 1
