"""What all wires have in common: how a body is read, what it asks the engines for, how an answer reaches its frames.

Each wire has a room of its own beside its bodies and frames: openai, anthropic. Knows no endpoint and no HTTP.
"""
