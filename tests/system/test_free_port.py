"""The port of TensorBoard: the first free one, and an error for anything that is not a port."""

import socket
import subprocess
import sys

import pytest

from lib.system.free_port import HOST, free_port


@pytest.mark.parametrize("listening", [True, False])
def test_a_port_that_is_bound_is_passed_over(listening):
    with socket.socket() as holder:
        holder.bind((HOST, 0))
        if listening:
            holder.listen()
        taken = holder.getsockname()[1]
        port, reservation = free_port(str(taken))
        reservation.close()
        assert port > taken
    port, reservation = free_port(str(taken))
    reservation.close()
    assert port == taken


def test_two_that_start_together_get_two_ports():
    with socket.socket() as holder:
        holder.bind((HOST, 0))
        first = str(holder.getsockname()[1])
    command = [sys.executable, "-m", "lib.system.free_port", first]
    ports = [subprocess.run(command, capture_output=True, text=True, timeout=20).stdout for _ in range(2)]
    assert ports[0] == f"{first}\n"
    assert int(ports[1]) > int(first)


@pytest.mark.parametrize("text", ["80x", "", "-1", "0", "65536", "1e3", "²"])
def test_what_is_no_port_is_refused_in_one_line(text):
    process = subprocess.run([sys.executable, "-m", "lib.system.free_port", text], capture_output=True, text=True)
    assert process.returncode == 2
    assert process.stderr == f"error: PORT is {text!r}; it has to be a whole number from 1 to 65535\n"
