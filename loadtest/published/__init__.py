"""Sweeps that others published: read, compared level by level, and what is wrong with them said aloud. Pure.

They are single runs in one order, known by their aggregates only. So nothing here is a confidence set: a crossing is
called credible where the levels on both its sides differ by more than single runs of this kind are known to scatter.
"""
