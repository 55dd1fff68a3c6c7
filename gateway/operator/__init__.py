"""The operator's HTTP API: the state of routing, the policy and its changes, calibrations, health and metrics."""

from gateway.operator.calibrations.registry import Calibrations
from gateway.operator.install import install_calibrations, install_operator
from gateway.operator.status import ALWAYS

__all__ = ["ALWAYS", "Calibrations", "install_calibrations", "install_operator"]
