"""The command line: one small file per verb, each a dataclass whose fields are the options and whose `run` does the work."""
