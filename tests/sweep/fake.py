"""Stands in for `ambs`: makes a run folder at once, then ends as told by AMBS_FAKE or, before it, a file: `… train --out FOLDER`.

`wait` waits to be told to stop, and then exits with 75, as a run does; anything else is an exit code. With `--seeds` it makes a
run of each; those that it is to resume it finishes.
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
if words[0] == "resume":
    for word in words[1 : words.index("--env")]:
        status = json.loads(Path(word, "status.json").read_text())
        Path(word, "status.json").write_text(json.dumps(status | {"state": "finished"}))
    sys.exit(0)
settings = json.loads(Path(words[words.index("--config") + 1]).read_text())
seeds = words[words.index("--seeds") + 1].split(",") if "--seeds" in words else [settings["seed"]]
homes = {int(seed): Path(words[words.index("--out") + 1].replace("{seed}", str(seed))) for seed in seeds}
told = next(iter(homes.values())) / "fake"
behaviour = told.read_text() if told.exists() else os.environ["AMBS_FAKE"]
if behaviour in ("0", "wait"):
    for seed, home in homes.items():
        named = {name: settings[name] for name in ("env", "method")} | {"seed": seed}
        state = "finished" if behaviour == "0" else "running"
        make_run(home, config=settings | {"seed": seed}, state=state, **named)
if behaviour == "wait":
    time.sleep(240)
print("some words")
sys.exit(int(behaviour))
