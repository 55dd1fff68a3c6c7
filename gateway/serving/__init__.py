"""Serving: the way from the client's wire to the engines' and back. dispatch.py is its spine."""

from gateway.serving.endpoints import LOCAL, Endpoints, Lane
from gateway.serving.entrance import Entrance
from gateway.serving.relay_lane import RelayLane
from gateway.serving.token_lane import TokenLane

__all__ = ["LOCAL", "Endpoints", "Entrance", "Lane", "RelayLane", "TokenLane"]
