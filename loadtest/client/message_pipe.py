"""Messages between two processes of the load generator: pickled, each with its length in front.

In: objects and asyncio streams. Out: the same objects on the other side.
"""

import asyncio
import pickle
import struct
from typing import Any

LENGTH = struct.Struct("<Q")


def send(writer: asyncio.StreamWriter, message: object) -> None:
    data = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    writer.write(LENGTH.pack(len(data)) + data)


async def receive(reader: asyncio.StreamReader) -> Any:  # Any: what the other side sends at this point
    """Receives one message. Raises IncompleteReadError when the other process has ended."""
    (length,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
    return pickle.loads(await reader.readexactly(length))  # from our own process, through a pipe that nobody else has
