"""`python -m ambs` is the command `ambs`."""

from ambs.cli.main import main

main()
