"""The OpenAI endpoints: wire to core on the way in, core to wire on the way out."""

from gateway.api.inference import Inference
from gateway.api.models import ModelList

__all__ = ["Inference", "ModelList"]
