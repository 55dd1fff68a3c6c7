"""Runs a calibration: which cells are measured when, what is observed meanwhile, and what becomes of the policy."""
