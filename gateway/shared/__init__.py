"""One memory map for all workers of a node, and its lock: plain words and bytes.

In: how many words. Out: views to read and write. Other rooms know what the words mean.
"""

from gateway.shared.lock import NodeLock
from gateway.shared.memory import WORD, Floats, Ints, Memory, as_floats
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
    "Predecessor",
    "Roster",
    "Seat",
    "as_floats",
]
