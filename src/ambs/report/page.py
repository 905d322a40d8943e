"""Self-contained pages: escaped text, embedded data, one policy that forbids the network, one look in light and dark.

Markup is made of `Html`, plain strings are text and are escaped wherever they go. Styles and scripts are files in `assets/`
and are let in by their hash only, so no text that slipped through could ever run.
"""

import base64
import hashlib
import html
import json
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

BASE_STYLE = "base.css"
_VOID = frozenset(("meta", "br", "hr", "img", "input"))


class Html(str):
    """Markup that may go into a page as it stands."""

    __slots__ = ()


Child = str | int | float | None
"""What may stand inside a tag: markup, or text that is escaped; None is nothing."""


def tag(name: str, *children: Child, **attributes: Any) -> Html:
    """`<name attribute="…">children</name>`; `class_` is `class`, `data_x` is `data-x`; None and False leave one out."""
    parts = [
        f' {key.rstrip("_").replace("_", "-")}="{html.escape("" if value is True else str(value))}"'
        for key, value in attributes.items()
        if value is not None and value is not False
    ]
    opened = f"<{name}{''.join(parts)}>"
    return Html(opened if name in _VOID else f"{opened}{join(*children)}</{name}>")


def join(*children: Child) -> Html:
    """Markup side by side; what is not markup is escaped."""
    return Html(
        "".join(
            child if isinstance(child, Html) else html.escape(str(child)) for child in children if child is not None
        )
    )


def table(head: Sequence[Child], rows: Sequence[Sequence[Child]], **attributes: Any) -> Html:
    """A table that scrolls sideways where it does not fit; the first cell of a row is its head.

    A row with the same head as the one above it has the class `again`.
    """
    top = tag("tr", *(tag("th", cell, scope="col") for cell in head))
    body = [
        tag(
            "tr",
            *(tag("td" if index else "th", cell, scope=None if index else "row") for index, cell in enumerate(row)),
            class_="again" if above is not None and above[0] == row[0] else None,
        )
        for above, row in zip((None, *rows), rows, strict=False)
    ]
    return tag(
        "div", tag("table", tag("thead", top), tag("tbody", *body), **attributes), class_="scroll", tabindex="0", role="region",
        aria_label="table",
    )  # fmt: skip


def page(
    title: str, body: Html, *, data: Any = None, scripts: tuple[str, ...] = (), styles: tuple[str, ...] = ()
) -> str:
    """A whole document. `data` is there for scripts as JSON in `#data`; scripts and styles are names in `assets/`."""
    css = [asset(name) for name in (BASE_STYLE, *styles)]
    code = [asset(name) for name in scripts]
    policy = (
        "default-src 'none'; img-src data:; base-uri 'none'; form-action 'none'; "
        f"style-src {_hashes(css)}; script-src {_hashes(code)}"
    )
    head = join(
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name_="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name_="color-scheme", content="light dark"),
        tag("title", title),
        *(tag("style", Html(text)) for text in css),
    )
    embedded = tag("script", embed(data), type="application/json", id="data") if data is not None else None
    end = join(embedded, *(tag("script", Html(text)) for text in code))
    return f'<!doctype html>\n<html lang="en">{tag("head", head)}{tag("body", body, end)}</html>\n'


def embed(data: Any) -> Html:
    """JSON that no parser of HTML takes for anything else: `<`, `>`, `&` and line separators are written as escapes."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"), ensure_ascii=False)
    for char in "<>&\u2028\u2029":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return Html(text)


def asset(name: str) -> str:
    """A style or script that comes with the package."""
    return (files("ambs.report") / "assets" / name).read_text(encoding="utf-8")


def _hashes(texts: list[str]) -> str:
    digests = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in texts]
    return " ".join(f"'sha256-{digest}'" for digest in digests) or "'none'"
