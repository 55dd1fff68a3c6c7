"""Calibrations started over HTTP: a process of `crossover calibrate` each, followed by the lines it writes."""

from gateway.operator.calibrations.registry import Calibrations
from gateway.operator.calibrations.routes import calibration_routes

__all__ = ["Calibrations", "calibration_routes"]
