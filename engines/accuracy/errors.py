"""Why nothing can be said of two endpoints. Imports nothing.

CannotMeasure     exit code 2: no connection, a refused request, an answer that lacks what was asked, a bad task file
"""


class CannotMeasure(Exception):
    """The message is the whole report: it names the endpoint, the item or the line, and what would help."""
