"""The policy `curve`: it serves the coming load by a physical model of the node, and corrects that model as it goes.

node_model: what was measured. load: the demand as the model reads it. memory: the policy's words. learning: scales and
errors. planner: where all that runs should be. guard: what came beside what was predicted. trying: the engine not used.
split: where a request goes on GPUs of their own. rate: arrivals a second. policy: the Policy itself.
"""

from engines.physics import EngineModel
from gateway.routing.policies.curve.node_model import NodeModel
from gateway.routing.policies.curve.policy import Curve

__all__ = ["Curve", "EngineModel", "NodeModel"]
