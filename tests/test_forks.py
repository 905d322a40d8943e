"""After `fork` JAX would hang in the child: whoever would use it there is told at once."""

import subprocess
import sys

import pytest

from ambs import forks
from ambs.acting.agent import load
from ambs.config.resolve import resolve
from ambs.errors import UserError
from ambs.training.session import reopen, start

pytestmark = pytest.mark.process

CODE = """
import os
from ambs.errors import UserError
from ambs.forks import refuse_after_fork
before = os.fork()  # Nothing was computed yet: this child may.
refuse_after_fork()
if before == 0:
    os._exit(0)
child = os.fork()
if child == 0:
    try:
        refuse_after_fork()
    except UserError as error:
        os._exit(7 if "spawn" in str(error) else 8)
    os._exit(9)
print([os.waitstatus_to_exitcode(os.waitpid(one, 0)[1]) for one in (before, child)])
"""


def test_a_child_of_a_process_that_has_computed_is_told():
    assert subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True).stdout == "[0, 7]\n"


def test_everybody_asks(monkeypatch, tmp_path):
    monkeypatch.setattr(forks, "_home", [-1])
    for use in (lambda: load(tmp_path), lambda: reopen(tmp_path), lambda: start(resolve("quickstart"), tmp_path)):
        with pytest.raises(UserError, match="was forked from one that has used JAX"):
            use()
