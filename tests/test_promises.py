"""docs/reliability.md names tests; they must be there."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_promises_are_held_by_tests_that_exist():
    text = (ROOT / "docs" / "reliability.md").read_text()
    table = text.partition("## Which test holds")[2].partition("## How it was tried")[0]
    named = 0
    for file, names in re.findall(r"`(tests/[\w/]+\.py)`(?:: ((?:`test_\w+`(?:, )?)+))?", table):
        source = (ROOT / file).read_text()
        for name in re.findall(r"test_\w+", names):
            assert f"def {name}(" in source, f"{file} has no {name}"
            named += 1
    assert named > 20
