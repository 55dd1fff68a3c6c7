"""A worker process of `crossover serve`, started by the supervisor.

In: an Assignment on stdin. Out: READY for the supervisor. It outlives the supervisor by no more than the drain time.
"""

import pickle
import socket
import sys

from gateway.app import Gateway
from gateway.commands.access import CannotStart, check_access
from gateway.commands.options import Assignment
from gateway.commands.server import Server
from gateway.metrics import note_tasks
from gateway.node import Node
from gateway.restarts import Board


def main() -> None:
    assignment: Assignment = pickle.load(sys.stdin.buffer)
    assignment.options.configure_logging(f"worker {assignment.index}")
    try:  # the keys may have gone since the gateway started
        check_access(assignment.settings, warns=False)
    except CannotStart as exc:
        sys.exit(f"worker {assignment.index}: {exc}")
    node = Node.join(assignment.settings, assignment.index, assignment.map_fd, Board(assignment.board_fd))
    with socket.socket(fileno=assignment.listener_fd) as listener, socket.socket(fileno=assignment.leash_fd) as leash:

        def beat() -> None:
            node.roster.beat()
            note_tasks(node.tally)

        Server(Gateway(assignment.settings, node), assignment.options, leash, beat).run([listener])


if __name__ == "__main__":
    main()
