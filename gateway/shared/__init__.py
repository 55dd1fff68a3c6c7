"""One memory map for all workers of a node, and its lock: plain words and bytes.

In: a plan of what lies where. Out: views to read and write. Other rooms know what the words mean.
"""

from gateway.shared.lock import NodeLock
from gateway.shared.memory import Floats, Ints, Memory
from gateway.shared.plan import WORD, Plan, Span
from gateway.shared.predecessor import Counts, Places, Predecessor
from gateway.shared.roster import Member, Roster
from gateway.shared.seat import Seat

__all__ = [
    "WORD",
    "Counts",
    "Floats",
    "Ints",
    "Member",
    "Memory",
    "NodeLock",
    "Places",
    "Plan",
    "Predecessor",
    "Roster",
    "Seat",
    "Span",
]
