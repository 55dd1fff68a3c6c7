"""The operator's HTTP API: what routing is doing, what it should do, and whether the gateway is up."""

from gateway.operator.calibrations import Calibrations
from gateway.operator.install import install_calibrations, install_operator
from gateway.operator.status import ALWAYS

__all__ = ["ALWAYS", "Calibrations", "install_calibrations", "install_operator"]
