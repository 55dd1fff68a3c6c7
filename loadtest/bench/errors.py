"""Why a benchmark cannot be run, in words for whoever started it."""


class BenchError(Exception):
    """Nothing can be measured; the message says what is missing."""
