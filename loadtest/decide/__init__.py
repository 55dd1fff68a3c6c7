"""Decides from figures: where the backends cross, how sure that is, what to measure next, what is good enough. Pure."""
