"""The load generator: how requests are sent and how their answers are timed. Knows nothing of calibrations."""
