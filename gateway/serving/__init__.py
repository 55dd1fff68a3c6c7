"""Serving: what becomes of a request between the client's wire and the engines'. dispatch.py is its spine."""

from gateway.serving.endpoints import LOCAL, Endpoints, Lane
from gateway.serving.relay_lane import RelayLane
from gateway.serving.token_lane import TokenLane

__all__ = ["LOCAL", "Endpoints", "Lane", "RelayLane", "TokenLane"]
