"""The OpenAI endpoints: wire to core on the way in, core to wire on the way out."""

from gateway.api.desk import Desk
from gateway.api.downstream import Downstream
from gateway.api.inference import TEXTS, Inference, Lane
from gateway.api.models import ModelList
from gateway.api.relay_lane import RelayLane
from gateway.api.token_lane import TokenLane

__all__ = ["TEXTS", "Desk", "Downstream", "Inference", "Lane", "ModelList", "RelayLane", "TokenLane"]
