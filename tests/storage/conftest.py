"""What the tests of checkpoints share."""

import pytest

from tests.storage.checkpoints import put


@pytest.fixture
def two(tmp_path):
    put(tmp_path, 10, "ab")
    put(tmp_path, 20, "bc")
    return tmp_path
