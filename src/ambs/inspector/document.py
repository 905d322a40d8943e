"""The inspector's page: what can be told without a script is in the markup, the rest is drawn from the data."""

import os
from collections import Counter
from typing import Any
from urllib.parse import quote

from ambs.inspector.audit import KINDS, audit
from ambs.inspector.data import page_data
from ambs.inspector.trust import trust
from ambs.recording.schema import GIVEN, Episode
from ambs.report.page import Html, join, page, tag

NOT_EXAMINED = (
    "Not examined: {}. Among them may be false alarms, or actions that were accepted too readily; a recording by "
    "`ambs eval RUN --record DIR --examine all` leaves none out."
)
SCRIPTS = ("inspector-rules.js", "inspector-draw.js", "inspector-card.js", "inspector.js")


def document(recording: Episode, others: list[tuple[str, str, bool]]) -> str:
    """The page of one episode; `others` are (file, text, whether it is this one) of all pages written with it."""
    data = page_data(recording)
    facts = data["facts"]
    head = tag(
        "header",
        tag("h1", "Why the shield stepped in" if facts["shield"] else "An episode without its shield"),
        tag(
            "p",
            tag("strong", promise(recording)),
            f" · {facts['env']}, {facts['method']}, {recording.name}{_kind(recording)}",
            class_="soft",
        ),
        _others(others),
        _notes(data),
        tag("noscript", tag("p", "This page needs JavaScript; it loads nothing.", class_="note")),
    )
    body = join(
        head,
        tag(
            "main",
            *(_timeline(), _stage(), _strips(), _what_if(data) if facts["shield"] else None, _audit(data)),
            trust(recording),
        ),
        tag(
            "footer",
            "Keys: ← → one step, Shift ten, Home and End, space plays, o and O next and previous override, "
            "v violation, a audit entry.",
        ),
    )
    return page(f"ambs inspect: {recording.name}", body, data=data, scripts=SCRIPTS, styles=("inspector.css",))


def promise(recording: Episode) -> str:
    """What the shield asks for, as PCTL."""
    settings = recording.facts.settings
    path = recording.facts.path or f"G≤{int(settings['horizon'])} {recording.facts.psi}"
    return f"P ≥ {1 - settings['safety_level']:.4g} [ {path} ]"


def _kind(recording: Episode) -> str:
    """The kind of shield, where it is another one than Alg. 2's; what that means stands in the caveat."""
    kind = str(recording.facts.settings.get("kind", "ambs"))[:20]
    return "" if kind == "ambs" else f" · shield of the kind {kind}"


def headline(recording: Episode) -> str:
    """An episode in a few words."""
    steps = recording.steps
    broken = int((steps.frame_violations & steps.frame_valid).any(axis=1).sum())
    shielded = recording.facts.shield and recording.decided
    told = f"{_count(len(recording.overrides), 'override')}, " if shielded else "shield off, "
    return f"{recording.name}: {told}{_count(broken, 'violating step')}, {_count(len(audit(recording)), 'finding')}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _others(others: list[tuple[str, str, bool]]) -> Html | None:
    if len(others) < 2:
        return None
    links = [
        tag("li", tag("strong", text) if here else tag("a", text, href=quote(os.fsencode(file))))
        for file, text, here in others
    ]
    if len(links) > 6:
        return tag("details", tag("summary", f"{len(links)} episodes"), tag("ul", *links, class_="episodes"))
    return tag("nav", tag("ul", *links, class_="episodes"), aria_label="episodes")


def _notes(data: dict[str, Any]) -> Html | None:
    sentences = []
    if data["facts"]["caveat"]:
        sentences.append(f"What the theorems do not cover: {data['facts']['caveat']}.")
    if data["facts"]["policy"] == GIVEN:
        sentences.append(
            "A policy that was given acted. In imagined futures, and in real ones that were tried beside the episode, its clone "
            "acts in its place."
        )
    names = {"futures": "imagined futures", "twins": "unshielded twins", "truth": "true probabilities"}
    missing = [f"{names[kind]} of {count}" for kind, count in data["left_out"].items() if count > 0 and kind in names]
    if missing:
        sentences.append(
            "A recording looks into a limited number of decisions, for no longer than the evaluation itself takes; "
            f"left out: {', '.join(missing)} decisions."
        )
    if data["without_pictures"]:
        sentences.append("Pictures are left out where the page would have become larger than 20 MB.")
    return tag("div", *(tag("p", sentence) for sentence in sentences), class_="note") if sentences else None


def _timeline() -> Html:
    buttons = [
        ("previous-override", "◂ override", "O"), ("back", "‹", "←"), ("play", "▶ play", "space"), ("forward", "›", "→"),
        ("next-override", "override ▸", "o"), ("next-violation", "violation ▸", "v"), ("next-audit", "audit ▸", "a"),
    ]  # fmt: skip
    controls = [tag("button", text, type="button", id=name, title=f"key {key}") for name, text, key in buttons]
    speeds = [tag("option", f"{speed} steps/s", value=speed, selected=speed == 5) for speed in (1, 2, 5, 10, 20, 50)]
    return tag(
        "section",
        tag("div", id="timeline", class_="panel"),
        tag("p", "", id="timeline-note", class_="soft"),
        tag("input", type="range", id="scrub", min=0, value=0, step=1, aria_label="step of the episode"),
        tag("div", *controls, tag("select", *speeds, id="speed", aria_label="speed"), class_="controls"),
        class_="time",
    )


def _stage() -> Html:
    note = tag("figcaption", id="map-note", class_="soft")
    camera = tag("img", id="camera", alt="what the agent sees")
    views = join(
        tag("figure", tag("div", id="map"), note, id="map-figure", class_="panel"),
        tag(
            "figure",
            camera,
            tag("figcaption", "what the agent sees", class_="soft"),
            id="camera-figure",
            class_="panel",
        ),
    )
    why = tag("article", id="why", class_="panel", aria_live="polite")
    return tag("section", tag("div", views, class_="views"), why, class_="stage")


def _strips() -> Html:
    note = tag("p", id="strips-note", class_="soft")
    return tag("section", tag("h2", "Counter-examples"), note, tag("div", id="strips"), id="strips-section")


def _what_if(data: dict[str, Any]) -> Html:
    settings = data["settings"]
    path, horizon = data["facts"]["path"], settings["horizon"]
    farthest = max(len(settings["cost_thresholds"]), horizon + max(2, horizon // 2))
    sliders = [
        ("level", "Δ", "chance of a violation that is tolerated", settings["safety_level"], 0.005, 0.95, 0.005),
        ("epsilon", "ε", "margin kept on top of it", settings["approximation_error"], 0.005, 0.95, 0.005),
        # What a future made of another path formula is known at its own bound alone.
        ("horizon", "n", "steps ahead that count", horizon, *((horizon, horizon) if path else (1, farthest)), 1),
    ]
    rows = [
        tag(
            "label", tag("span", tag("strong", sign), f" {text}"),
            tag("input", type="range", id=name, min=low, max=high, step=step, value=value, data_recorded=value),
            tag("output", str(round(value, 3)), id=f"{name}-value", for_=name),
        )
        for name, sign, text, value, low, high, step in sliders
    ]  # fmt: skip
    what = "Every decision of the episode again, from the stored futures, had the shield been set otherwise."
    reset = tag("button", "as recorded", type="button", id="reset")
    panel = tag(
        "div", tag("div", *rows, class_="sliders"), tag("div", id="what-if", role="status"), reset, class_="panel"
    )
    return tag("section", tag("h2", "What if"), tag("p", what, class_="soft"), panel)


def _audit(data: dict[str, Any]) -> Html:
    explained = tag("ul", *(tag("li", tag("strong", kind), f": {text}") for kind, text in KINDS.items()), class_="soft")
    entries = data["audit"]
    rows = [
        tag("li", _jump(entry["step"]), " ", tag("strong", entry["kind"]), f": {entry['text']}") for entry in entries
    ]
    found = tag("ol", *rows, id="audit") if rows else tag("p", "Nothing to report.", id="audit")
    meaning = tag("details", tag("summary", "what these mean"), explained)
    counts = Counter(entry["kind"] for entry in entries)
    told = ", ".join(f"{count} × {kind}" for kind, count in counts.items())
    return tag(
        "section",
        tag("h2", "Audit"),
        tag("p", told, class_="soft") if told else None,
        tag("p", NOT_EXAMINED.format(data["not_examined"]), id="not-examined") if data["not_examined"] else None,
        *(found, meaning),
    )


def _jump(step: int) -> Html:
    return tag("button", f"step {step}", type="button", data_step=step, class_="link")
