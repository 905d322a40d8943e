"""What is written: nothing untrusted acts, every format says the same, and a large report stays small."""

import csv
import html.parser
import io
import json
import os
import re
import subprocess
import sys
import time

import pytest
from PIL import Image

from ambs.report.page import Html, embed, join, page, table, tag
from ambs.report.summary import summarise
from ambs.report.write import text_of, write
from tests.report.synthetic import make_run

EVIL = '<script>alert("x")</script>'
FORMULA = "=cmd()|<img src=x onerror=alert(1)>"


class Tags(html.parser.HTMLParser):
    """Names and attributes of all tags, as a browser would find them."""

    def __init__(self, text):
        super().__init__()
        self.found = []
        self.feed(text)

    def handle_starttag(self, name, attributes):
        self.found.append((name, dict(attributes)))


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    root = tmp_path_factory.mktemp("hostile") / EVIL.replace("/", "")
    config = {"psi": EVIL, "obs": "</script><!--\u2028&"}
    for seed in (0, 1):
        make_run(root, env=EVIL, method=FORMULA, seed=seed, command=["ambs", EVIL], config=config)
    make_run(root, env=EVIL, method="$_x|y`*", state="failed", config={"psi": "other"})
    (root / "empty").mkdir()
    return summarise([root, root / "empty"])


def test_tags_by_hand():
    assert tag("p", "a < b", Html("<br>"), class_="x", hidden=True, title='"') == (
        '<p class="x" hidden="" title="&quot;">a &lt; b<br></p>'
    )
    assert join(None, 1, "&") == "1&amp;"
    assert tag("meta", charset="utf-8", content=None) == '<meta charset="utf-8">'
    assert '<th scope="row">&lt;i&gt;</th><td>2</td>' in table(["a", "b"], [["<i>", "2"]])


def test_embedded_data_is_inert():
    data = {"x": "</script><!--<b>&\u2028\u2029"}
    text = embed(data)
    assert not set("<>&\u2028\u2029") & set(text)
    assert json.loads(text) == data
    with pytest.raises(ValueError, match="JSON"):
        embed(float("nan"))


def test_policy_lets_in_only_what_is_ours():
    import base64
    import hashlib

    text = page("t", tag("p", "x"), data=1, scripts=("charts.js",), styles=("report.css",))
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', text)
    assert policy.startswith("default-src &#x27;none&#x27;")
    assert "unsafe" not in policy
    for part in re.findall(r"<(?:style|script)>(.*?)</(?:style|script)>", text, re.DOTALL):
        assert base64.b64encode(hashlib.sha256(part.encode()).digest()).decode() in policy


def test_nothing_untrusted_becomes_markup(hostile):
    text = text_of(hostile, "html")
    tags = Tags(text).found
    scripts = [attributes for name, attributes in tags if name == "script"]
    assert scripts == [{"type": "application/json", "id": "data"}, {}]
    assert not [name for name, _ in tags if name in ("img", "iframe", "link", "object", "base", "form")]
    assert not [key for _, attributes in tags for key in attributes if key.startswith("on") or key == "style"]
    assert "http://" not in text.replace("http://www.w3.org/2000/svg", "")
    assert "https://" not in text
    assert "&lt;script&gt;alert(&quot;x&quot;)&lt;/script&gt;" in text


def test_other_formats_are_inert_too(hostile, tmp_path):
    markdown = text_of(hostile, "md")
    assert "<" not in markdown
    assert "&lt;" in markdown
    rows = list(csv.reader(io.StringIO(text_of(hostile, "csv"))))
    assert {row[2][:1] for row in rows[1:]} == {"'", "$"}
    write(hostile, tmp_path / "figure.png", "png")
    with Image.open(tmp_path / "figure.png") as picture:
        assert picture.size == (2100, 870)
    assert [path.name for path in tmp_path.iterdir()] == ["figure.png"]


def test_notes_and_commands_cannot_break_out_of_markdown(tmp_path):
    """The note beside the paper's figures names what was observed; a carriage return would end a line."""
    script = "<script>alert(1)</script>"
    command = ["ambs", "train\r\r<img src=x>"]
    make_run(tmp_path, frames=1_000_000, config={"obs": script}, command=command)
    lines = text_of(summarise([tmp_path]), "md").splitlines()
    assert any("&lt;script&gt;" in line for line in lines)
    assert not [line for line in lines if "<" in line]
    assert lines[-1] == "- ambs 'train &lt;img src=x&gt;'"


def test_foreign_numbers_do_not_break_json(tmp_path):
    run = make_run(tmp_path)
    record = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps(record | {"created": float("nan"), "device": float("inf")}))
    assert json.loads(text_of(summarise([tmp_path]), "json"))["runs"]


def test_settings_that_teach_nothing_make_no_group(tmp_path):
    """A waiting time, and a weight that runs from before it was a setting had as well."""
    for seed, more in enumerate(
        ({}, {"training": {"frames": 20_000, "env_timeout": 9.0}}, {"model": {"label_scale": 1.0}})
    ):
        make_run(tmp_path, seed=seed, config=more)
    (group,) = summarise([tmp_path])["environments"][0]["groups"]
    assert group["label"] == "AMBS + COPT"


def test_json_is_the_summary(hostile):
    assert json.loads(text_of(hostile, "json")) == json.loads(json.dumps(hostile))


def test_figures_are_the_same_in_every_format(tmp_path):
    for seed in (0, 1, 2):
        make_run(tmp_path, seed=seed)
        make_run(tmp_path, seed=seed, method="lag")
    summary = summarise([tmp_path])
    copt = next(g for g in summary["environments"][0]["groups"] if g["method"] == "copt")
    mean = copt["outcomes"]["violations_per_1000"]["mean"]
    shown = f"{mean['mean']:.3g} [{mean['low']:.3g}, {mean['high']:.3g}]"
    assert shown in text_of(summary, "html")
    assert shown in text_of(summary, "md").replace("\\", "")
    curve = [row for row in csv.DictReader(io.StringIO(text_of(summary, "csv"))) if row["quantity"] == "violations"]
    last = [row for row in curve if row["method"] == "AMBS + COPT"][-1]
    assert (last["frames"], last["seeds"]) == ("20000", "3")
    assert float(last["mean"]) == pytest.approx(copt["outcomes"]["violations"]["mean"]["mean"], rel=1e-4)
    page_text = text_of(summary, "html")
    for words in (
        "Nominally 95 %; with 3 seeds",
        "17.32 ± 3.29",
        "The paper&#x27;s figures",
        "ambs train --method lag",
        "4.5e-06",
    ):
        assert words in page_text


@pytest.mark.slow
def test_a_large_report_is_quick_and_small(tmp_path):
    """8 runs of 1M frames and 1000 episodes on two cores: 20 s, 1 GB and 5 MB at most."""
    for method in ("copt", "lag"):
        for seed in range(4):
            make_run(tmp_path / "runs", method=method, seed=seed, frames=10**6, episodes=1000, rows=1000, names=30)
    command = [sys.executable, "-m", "ambs", "report", str(tmp_path / "runs"), "--out", str(tmp_path / "r.html")]
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(allowed)[:2])  # Children have it too.
    try:
        begun = time.monotonic()
        child = subprocess.Popen(command)
        _, code, used = os.wait4(child.pid, 0)
        wall = time.monotonic() - begun
    finally:
        os.sched_setaffinity(0, allowed)
    child.returncode = os.waitstatus_to_exitcode(code)
    assert child.returncode == 0
    # Others that use these cores make it wait.
    assert wall < 20 * max(1.0, os.getloadavg()[0] / 2)
    assert used.ru_utime + used.ru_stime < 20
    assert used.ru_maxrss < 1_000_000
    assert (tmp_path / "r.html").stat().st_size < 5_000_000
    print(f"{wall:.1f} s, {used.ru_utime + used.ru_stime:.1f} s of a core, {used.ru_maxrss / 1e3:.0f} MB")
