"""One memory map for all workers of a node, and the lock that goes with it: plain words and bytes, no meaning.

In: a plan of what lies where. Out: views to read and write. What the words say is for routing and metrics to know.
"""

from gateway.shared.lock import NodeLock
from gateway.shared.memory import Floats, Ints, Memory
from gateway.shared.plan import Plan, Span
from gateway.shared.roster import Member, Roster
from gateway.shared.seat import Seat

__all__ = ["Floats", "Ints", "Member", "Memory", "NodeLock", "Plan", "Roster", "Seat", "Span"]
