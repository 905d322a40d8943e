"""`ambs fit --data episodes/*.npz --spec …`."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ambs.cli.words import refuse_file

if TYPE_CHECKING:
    from ambs.training.offline import Offline
    from ambs.training.session import Session


@dataclass(frozen=True)
class Fit:
    """Learn a shield around a policy from logged episodes alone: no simulator is run, and no reward is needed.

    World model, label heads, a clone of the policy, critics and a backup policy go into an ordinary run folder, of which
    `ambs.load(run).guard(policy)` makes a guard. Says at the end what such a shield can and cannot know.
    """

    data: tuple[Path, ...]
    """Files of episodes, such as `ambs record-episodes` writes (docs/episodes.md): episodes/*.npz."""
    spec: str | None = None
    """Safety property such as "P>=0.9 [ G<=20 !hazard ]", counted in steps of the logs, or a formula such as "!hazard": Ψ alone;
    None: what the files call safe."""
    updates: int = 6000
    """How much is learned."""
    preset: Literal["guard", "default", "paper-scale"] = "guard"
    """Sizes: guard is for a few numbers on two cores, default for pictures on a GPU."""
    env: str | None = None
    """Name of the environment, by which the run can be evaluated; None: what the files say."""
    config: Path | None = None
    """JSON file of further settings, as for `ambs train`."""
    seed: int = 0
    """Of weights and noise."""
    out: Path = Path("runs")
    """Where the run folder goes."""
    device: Literal["auto", "cpu", "gpu"] = "auto"
    """Where to compute."""

    def run(self) -> int:
        """Learn."""
        from ambs.cli.train import prepare_device, read_settings, watch

        refuse_file("--out", self.out)
        changes = read_settings(self.config) if self.config is not None else None
        prepare_device(self.device, "xxs" if self.preset == "guard" else "xs")

        def begin(**hooks: Any) -> Session:
            from ambs.training.offline import fit

            return fit(
                self.data, spec=self.spec, updates=self.updates, env=self.env, out=self.out, preset=self.preset,
                seed=self.seed, changes=changes, command=sys.argv, **hooks,
            )  # fmt: skip

        return watch(begin, _say)


def _say(session: Session, state: str) -> None:
    from ambs.training.offline import limits

    trainer: Offline = session.trainer  # type: ignore[assignment]
    path = session.folder.path
    print(f"{'Finished' if state == 'finished' else 'Stopped; what was learned so far is saved'}: {path}")
    for sentence in limits([one for dealt in trainer.logs.dealt for one in dealt], trainer.logs.psi):
        print(f"- {sentence}")
    print(f"Guard a policy with it:  ambs.load({str(path)!r}).guard(policy)", flush=True)
