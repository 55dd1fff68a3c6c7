"""Whether load testers agree: the same engine, whose speed is known, measured by each in turn.

`python -m loadtest.agreement` starts the others by their command lines and reads the files that they write.
"""
