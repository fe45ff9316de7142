"""Why files could not be fetched, in one line each."""


class FetchError(Exception):
    """What the person who asked for the files can do something about."""


class Unreachable(FetchError):
    """The hub cannot be reached, or cannot answer, now: another attempt may do."""
