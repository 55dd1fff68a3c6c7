"""Taken and free TCP ports."""

import socket

from deploy.ports import LOCALHOST, find_free, is_taken, listens


def test_port_with_a_listener_is_taken() -> None:
    with socket.create_server((LOCALHOST, 0)) as server:
        port = server.getsockname()[1]
        assert is_taken(port)
        assert listens(port)
    assert not is_taken(port)
    assert not listens(port)


def test_free_ports_are_distinct_and_free() -> None:
    ports = find_free(20)
    assert len(set(ports)) == 20
    assert not any(is_taken(port) for port in ports)


def test_a_port_that_was_given_is_not_given_again_soon() -> None:
    """Whoever has it may not listen there yet."""
    assert len({find_free(1)[0] for _ in range(300)}) == 300
