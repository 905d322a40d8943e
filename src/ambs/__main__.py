"""`python -m ambs` is the command `ambs`."""

import os
import sys

if not sys.flags.safe_path and sys.path[:1] == [os.getcwd()]:
    # Python looks for modules in the current folder first, which may be a run folder from elsewhere.
    del sys.path[0]

from ambs.cli.main import main

if __name__ == "__main__":
    main()
