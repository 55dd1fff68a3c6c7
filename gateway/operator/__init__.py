"""The operator's HTTP API: what routing is doing, what it should do, and whether the gateway is up."""

from gateway.operator.install import install_operator

__all__ = ["install_operator"]
