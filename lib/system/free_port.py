"""Print the first free port from a given one on, for the Makefile: python -m lib.system.free_port 6006"""

import socket
import sys

HOST = "127.0.0.1"
TRIED = 100  # ports
LARGEST = 65_535


def free_port(text: str) -> int:
    """Return the first free port among TRIED.

    Args:
        text: first port to try.

    Raises:
        ValueError: if it is not a port, or none of them is free.
    """
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= LARGEST:
        raise ValueError(f"PORT is {text!r}; it has to be a whole number from 1 to {LARGEST}")
    first = int(text)
    last = min(first + TRIED - 1, LARGEST)
    for port in range(first, last + 1):
        if _is_free(port):
            return port
    raise ValueError(f"none of the ports {first} to {last} is free; give another PORT")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # the port may have been used a moment ago
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


if __name__ == "__main__":
    try:
        print(free_port(sys.argv[1]))
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
