"""How long an inference engine takes: the one model that the gateway plans with, the load tester fits, and the
simulated and the paced engines obey.

Pure: no clock, no I/O, nothing of the gateway, the load tester or the engines' wires.
"""

from engines.physics.forecast import Mix, Outlook, foresee
from engines.physics.model import EngineModel
from engines.physics.replica import Job, Replica

__all__ = ["EngineModel", "Job", "Mix", "Outlook", "Replica", "foresee"]
