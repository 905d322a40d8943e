"""The one exception that is meant for people."""


class UserError(ValueError):
    """Bad input, told in a sentence: the command line prints it without a traceback and exits with 2."""
