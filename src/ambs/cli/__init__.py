"""The command line: one small file per verb, a dataclass whose fields are the options and whose `run` does the work."""
