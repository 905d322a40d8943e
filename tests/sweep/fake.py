"""Stands in for `ambs`: makes a run folder at once and then ends as AMBS_FAKE says; `python fake.py train --config FILE --out FOLDER`.

`wait` waits to be told to stop, and then exits with 75, as a run does; anything else is an exit code.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

from tests.report.synthetic import make_run

signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))
words = sys.argv[1:]
home = Path(words[words.index("--out") + 1])
behaviour = os.environ["AMBS_FAKE"]
if behaviour in ("0", "wait"):
    settings = json.loads(Path(words[words.index("--config") + 1]).read_text())
    make_run(home, method=settings["method"], state="finished" if behaviour == "0" else "running")
if behaviour == "wait":
    time.sleep(60)
print("some words")
sys.exit(int(behaviour))
