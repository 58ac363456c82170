import os
import signal

import pytest

# Before torch is imported, here and in every process that a test starts. Two of them at a time, each with a thread a
# core, wait for each other's threads most of the time.
os.environ["OMP_NUM_THREADS"] = "1"


@pytest.fixture(autouse=True)
def _signals_as_in_a_terminal():
    """Whoever starts the tests may ignore them, as nohup and a shell's background jobs do, and programs inherit that;
    a run that a test had fail leaves its own handlers behind."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
