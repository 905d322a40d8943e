"""The page as readers meet it, in a browser: light and dark, wide and narrow, with pointer and keys."""

import json

import pytest

from ambs.report.summary import summarise
from ambs.report.write import write
from tests.report.synthetic import add_foresight, make_run

pytestmark = pytest.mark.process

EVIL = "<script>window.stolen=1</script>"
WIDE, PHONE = (1280, 800), (390, 844)


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    root = tmp_path_factory.mktemp("page")
    for method in ("lag", "copt", EVIL):
        for seed in (0, 1, 2):
            level = 0.3 + 0.1 * seed if method == "copt" else None
            add_foresight(make_run(root / "runs", method=method, seed=seed, level=level))
    make_run(root / "runs", seed=3, frames=5000, wanted=20_000, state="failed")
    (root / "runs" / "empty").mkdir()
    write(summarise([root / "runs", root / "runs" / "empty"]), root / "report.html", "html")
    return root / "report.html"


def opened(browser, report, size=WIDE, dark=False):
    browser.open(report, width=size[0], height=size[1], dark=dark)
    browser.wait("document.documentElement.dataset.drawn === 'yes'")


def shown(browser):
    """Groups that the first chart draws."""
    return browser.evaluate(
        "[...document.querySelectorAll('figure.chart')][0].querySelectorAll('g[data-group]').length"
    )


@pytest.mark.parametrize("size", [WIDE, PHONE])
@pytest.mark.parametrize("dark", [False, True])
def test_opens_without_complaint(browser, report, size, dark):
    opened(browser, report, size, dark)
    assert browser.complaints == []
    assert browser.requests == [report.as_uri()]
    assert browser.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    assert browser.evaluate("document.querySelectorAll('figure.chart svg').length") >= 12
    light = browser.evaluate(
        "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number).reduce((a, b) => a + b) > 3 * 128"
    )
    assert light is not dark
    assert browser.evaluate("document.querySelectorAll('.reliability circle').length") > 9
    # A chart is as wide as its place, and nothing in it is not a number.
    assert browser.evaluate(
        "[...document.querySelectorAll('figure svg')].every(svg => svg.getBoundingClientRect().right <= innerWidth)"
    )
    assert not browser.evaluate("/NaN|undefined|Infinity/.test(document.querySelector('main').innerHTML)")


def test_columns_follow_the_width(browser, report):
    opened(browser, report)
    columns = "getComputedStyle(document.querySelector('.charts.two')).gridTemplateColumns.split(' ').length"
    assert browser.evaluate(columns) == 2
    browser.resize(*PHONE)
    assert browser.evaluate(columns) == 1
    browser.wait("document.querySelector('figure.chart svg').viewBox.baseVal.width < 390")


def test_untrusted_text_is_text(browser, report):
    opened(browser, report)
    assert browser.evaluate("window.stolen") is None
    assert browser.evaluate(f"document.querySelector('.legend').textContent.includes({json.dumps(EVIL)})")
    # Even a script that got in could not run, nor load anything.
    browser.evaluate(
        "document.body.append(Object.assign(document.createElement('img'), {src: 'http://127.0.0.1:9/x.png'}))"
    )
    browser.evaluate(
        "document.body.insertAdjacentHTML('beforeend', '<p id=p onclick=\"window.stolen=2\">x</p>'), p.click()"
    )
    browser.wait("true")
    assert browser.evaluate("window.stolen") is None
    assert any("Content Security Policy" in complaint for complaint in browser.complaints)


def test_tooltip_follows_the_pointer(browser, report):
    opened(browser, report)
    x, y = browser.middle("figure.chart svg")
    tip = "document.querySelector('figure.chart .tooltip')"
    assert browser.evaluate(f"{tip}.hidden")
    browser.move(x, y)
    browser.wait(f"!{tip}.hidden")
    text = browser.evaluate(f"{tip}.textContent")
    assert "frames" in text
    assert "AMBS + COPT: " in text
    assert "[" in text
    assert EVIL in text
    assert browser.evaluate(
        f"{tip}.getBoundingClientRect().right <= innerWidth && {tip}.getBoundingClientRect().left >= 0"
    )
    browser.move(x + 100, y)
    browser.wait(f"{tip}.textContent !== {json.dumps(text)}")
    browser.move(2, 2)
    browser.wait(f"{tip}.hidden")


def test_tooltip_tells_the_recorded_figures(browser, report):
    """The last point of the curve is the outcome that the summary holds."""
    opened(browser, report)
    browser.evaluate("document.querySelectorAll('figure.chart svg')[1].focus()")
    browser.press("ArrowRight")
    text = browser.evaluate("document.querySelectorAll('figure.chart .tooltip')[1].textContent")
    summary = summarise([report.parent / "runs"])
    (part,) = summary["environments"]
    lag = next(group for group in part["groups"] if group["method"] == "lag")
    mean = lag["outcomes"]["violations"]["mean"]["mean"]
    assert "20,000 frames" in text
    assert f"DreamerV3 + LAG: {mean:.4g} [" in text
    browser.press("Escape")
    assert browser.evaluate("document.querySelectorAll('figure.chart .tooltip')[1].hidden")


def test_legend_toggles(browser, report):
    opened(browser, report)
    assert shown(browser) == 3
    button = ".legend button[data-group='0']"
    browser.click(button)
    assert shown(browser) == 2
    assert browser.evaluate(f"document.querySelector(\"{button}\").getAttribute('aria-pressed')") == "false"
    browser.click(button)
    assert shown(browser) == 3
    single = "document.querySelectorAll('figure.chart .each').length"
    assert browser.evaluate(single) > 0
    browser.click(".legend .singles")
    assert browser.evaluate(single) == 0
    assert browser.complaints == []


def test_folded_charts_are_drawn_when_opened(browser, report):
    opened(browser, report)
    folded = "document.querySelectorAll('details figure.chart svg').length"
    assert browser.evaluate(folded) == 0
    browser.click("details summary")
    browser.wait(f"{folded} > 0")
    assert browser.complaints == []


def test_says_what_is_missing(browser, report):
    opened(browser, report)
    note = browser.evaluate("document.querySelector('.note').textContent")
    assert "empty holds no run" in note
    assert "failed (5,000 of 20,000 frames)" in note
    assert "reached 5,000 of the 20,000 frames compared" in note
