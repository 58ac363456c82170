import platform
import subprocess
import sys

import pytest

# Page faults of six 8 MiB blocks, the activations of a batch, allocated, filled and freed forty times.
BLOCKS = """
import resource, sys
import numpy as np
from lib import malloc
if sys.argv[1] == "keep":
    assert malloc.keep_freed_memory()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(40):
    activations = [np.ones(2**20) for _ in range(6)]
    del activations
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="a setting of glibc")
def test_freed_memory_is_used_again_without_asking_the_system():
    def faults(how):
        return int(subprocess.run([sys.executable, "-c", BLOCKS, how], capture_output=True, text=True).stdout)

    assert faults("keep") < 0.1 * faults("default")
