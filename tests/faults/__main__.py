"""`python -m tests.faults FOLDER JOB …`: tests/faults/host.py, which nothing here imports for workers that are spawned."""

import sys
from pathlib import Path

if __name__ == "__main__":
    from tests.faults.host import start

    start(Path(sys.argv[1]), sys.argv[2:])
