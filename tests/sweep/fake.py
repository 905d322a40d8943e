"""Stands in for `ambs`: makes a run folder at once, then ends as told by AMBS_FAKE or, before it, a file: `… train --out FOLDER`.

`wait` waits to be told to stop, and then exits with 75, as a run does; anything else is an exit code.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

from ambs.storage.leash import wear
from tests.report.synthetic import make_run


def stop(*_):
    print("asked to stop", flush=True)
    sys.exit(75)


signal.signal(signal.SIGTERM, stop)
wear()
words = sys.argv[1:]
home = Path(words[words.index("--out") + 1])
told = home / "fake"
behaviour = told.read_text() if told.exists() else os.environ["AMBS_FAKE"]
if behaviour in ("0", "wait"):
    settings = json.loads(Path(words[words.index("--config") + 1]).read_text())
    named = {name: settings[name] for name in ("env", "method", "seed")}
    make_run(home, config=settings, state="finished" if behaviour == "0" else "running", **named)
if behaviour == "wait":
    time.sleep(240)
print("some words")
sys.exit(int(behaviour))
