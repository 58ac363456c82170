"""Print the first free port from a given one on, for the Makefile: python -m lib.system.free_port 6006

On Linux, the port stays reserved for a minute, in which TensorBoard starts to listen there. So two runs that start
together get two ports.
"""

import os
import socket
import sys
import time

HOST = "127.0.0.1"
TRIED = 100  # ports
LARGEST = 65_535
RESERVED = 60  # seconds


def free_port(text: str) -> tuple[int, socket.socket]:
    """Return the first free port among TRIED, and a socket that reserves it against other calls until it is closed.

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
        if _is_free(port) and (reservation := _reservation(port)):
            return port, reservation
    raise ValueError(f"none of the ports {first} to {last} is free; give another PORT")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # the port may have been used a moment ago
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def _reservation(port: int) -> socket.socket | None:
    """Return a socket whose name only one process can have, or None if another one has it.

    Elsewhere than on Linux, return a socket without a name, which reserves nothing.
    """
    reservation = socket.socket(socket.AF_UNIX)
    if sys.platform != "linux":  # other systems lack names that end with their process
        return reservation
    try:
        reservation.bind(f"\0pong-ladder port {port}")
    except OSError:
        reservation.close()
        return None
    return reservation


def main() -> None:
    try:
        port, reservation = free_port(sys.argv[1])
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    print(port, flush=True)
    with reservation:
        if os.fork() == 0:  # the child keeps it
            os.closerange(0, 3)
            time.sleep(RESERVED)
            os._exit(0)


if __name__ == "__main__":
    main()
