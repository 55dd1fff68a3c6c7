"""Why two endpoints cannot be compared. Imports nothing."""


class CannotMeasure(Exception):
    """Ends the run with exit code 2: no connection, a refused request, an answer without what was asked for, a bad
    task file. The message names the endpoint, the item or the line, and what would help.
    """
