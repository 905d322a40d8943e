"""How far the shield of a recorded episode can be trusted: what `ambs foresight` found, and the level in force."""

from typing import Any

from ambs.recording.schema import Episode
from ambs.report import formatting
from ambs.report.levels import MOST_LENIENT
from ambs.report.page import Html, tag

TITLE = "How far this shield's imagination can be trusted"


def trust(recording: Episode) -> Html:
    """The section of the page; where nothing was measured it says how to."""
    found = recording.facts.foresight
    facts = [_fact("Δ in force", level_in_force(recording))]
    if found is None:
        command = tag("code", "ambs foresight RUN")
        told = tag("p", "Not measured. ", command, " tells; what is recorded after it shows it here.", class_="soft")
    else:
        told, facts = tag("p", _measured(recording, found), class_="soft"), [*facts, *_figures(found)]
    return tag("section", tag("h2", TITLE), told, tag("dl", *facts, class_="panel"), id="trust")


def level_in_force(recording: Episode) -> str:
    """Δ in force beside Δ asked for."""
    settings = recording.facts.settings
    level, asked = settings["safety_level"], settings["asked"]
    if asked is None or asked == level:
        return f"{formatting.number(level)}, as asked for"
    told = (
        f"{formatting.number(level)}, where {formatting.number(asked)} was asked for: its model is too blurred for less"
    )
    return told + (", or was never judged" if level >= MOST_LENIENT else "")


def _measured(recording: Episode, found: dict[str, Any]) -> str:
    """What was measured, and where it is not what was recorded."""
    settings = recording.facts.settings
    frames, own = found["checkpoint"], recording.facts.checkpoint
    told = f"On fresh layouts with the shield off, {found['steps']:,} steps: does the formula fail within "
    told += f"{found['horizon']} steps? 95 % intervals."
    if frames is not None and own is not None and frames != own:
        told += f" Measured at {frames:,} frames; this episode was played by the agent at {own:,}."
    if found["horizon"] != settings["horizon"]:
        told += f" This episode's shield looks {int(settings['horizon'])} steps ahead."
    labels = str(settings.get("labels"))[:20]
    if found["labels"] != labels:
        told += f" Measured with labels “{found['labels']}”; this episode's are “{labels}”."
    return told


def _figures(found: dict[str, Any]) -> list[Html]:
    before = [
        _fact(f"{lead} step{'s' * (lead != '1')} before", formatting.interval(share))
        for lead, share in found["detection"].items()
    ]
    return [
        _fact("AUROC", f"{formatting.interval(found['auroc'])}; 1: danger always scores higher, .5: guessing"),
        _fact("flagged of all that fail", f"{formatting.interval(found['flagged'])}; at 5 % false alarms, as below"),
        *before,
        _fact(
            "calibration error", f"{formatting.interval(found['ece'])}; how far risks are from the shares that failed"
        ),
    ]


def _fact(name: str, text: str) -> Html:
    return tag("div", tag("dt", name), tag("dd", text), class_="fact")
