"""Calibrations started over HTTP: a process of `crossover calibrate` each, followed by the lines it writes."""
