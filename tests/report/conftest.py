"""One browser for all pages that are tested."""

import pytest

from tests.browser import Browser


@pytest.fixture(scope="session")
def browser():
    browser = Browser()
    yield browser
    browser.close()
