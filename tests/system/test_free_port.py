"""The port of TensorBoard: the first free one, and an error for anything that is not a port."""

import os
import re
import signal
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


def test_a_printed_port_stays_reserved():
    with socket.socket() as holder:
        holder.bind((HOST, 0))
        first = str(holder.getsockname()[1])
    command = [sys.executable, "-m", "lib.system.free_port", first]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        printed, _ = process.communicate(timeout=20)
    port, reservation = free_port(printed.rstrip("\n"))
    reservation.close()
    os.killpg(process.pid, signal.SIGKILL)  # the child that holds the reservation
    assert port > int(printed) >= int(first)


@pytest.mark.parametrize("text", ["80x", "", "-1", "0", "65536", "1e3", "²"])
def test_what_is_no_port_is_refused(text):
    with pytest.raises(ValueError, match=rf"PORT is {re.escape(repr(text))}.* from 1 to 65535"):
        free_port(text)


def test_the_error_is_one_line():
    process = subprocess.run([sys.executable, "-m", "lib.system.free_port", "80x"], capture_output=True, text=True)
    assert process.returncode == 2
    assert process.stderr.startswith("error: PORT is '80x'")
    assert process.stderr.count("\n") == 1
