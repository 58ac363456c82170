import platform
import subprocess
import sys

import numpy as np
import psutil
import pytest

from lib.errors import UsageError
from lib.system import memory

# Page faults of six 8 MiB blocks, the activations of a batch, allocated, filled and freed forty times.
BLOCKS = """
import resource, sys
import numpy as np
from lib import memory
from lib.errors import UsageError
if sys.argv[1] == "keep":
    assert memory.keep_freed_memory()
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


def group(folder, limit, use, cache):
    (folder / "memory.max").write_text(f"{limit}\n")
    (folder / "memory.current").write_text(f"{use}\n")
    (folder / "memory.stat").write_text(f"anon 5\ninactive_file {cache}\n")
    return ((str(folder), "memory.max", "memory.current", "inactive_file"),)


def test_free_memory_is_what_the_control_group_leaves_its_cache_not_counted(tmp_path):
    assert memory.free(group(tmp_path, 1000, 800, 300)) == 500
    assert memory.free(group(tmp_path, 1000, 1200, 100)) == 0


def test_without_a_limit_it_is_the_machines(tmp_path):
    for groups in (group(tmp_path, "max", 800, 300), (), (("/no/such", "a", "b", "c"),)):
        assert 0 < memory.free(groups) <= psutil.virtual_memory().total
    assert 0 < memory.free() <= psutil.virtual_memory().total


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="a function of glibc")
def test_what_lies_free_between_blocks_in_use_is_handed_back():
    process = psutil.Process()
    trim = memory.Trimmer()
    blocks = [np.ones(100_000, np.uint8) for _ in range(8000)]
    del blocks[::2]  # 400 MB in 4,000 gaps
    before = process.memory_info().rss
    trim()
    assert process.memory_info().rss < before - 300e6
    assert all(int(block.sum()) == 100_000 for block in blocks)


def test_nothing_is_handed_back_while_little_has_grown(monkeypatch):
    trim = memory.Trimmer()
    calls = []
    monkeypatch.setattr(trim, "_trim", calls.append)
    trim()
    assert calls == []
    trim._low -= memory.KEPT + 10**8
    trim()
    assert calls == [0]
    trim()
    assert calls == [0]  # measured from where it is now


def test_what_does_not_fit_is_refused_with_what_would_and_leaves_a_fifth(monkeypatch):
    def ask(amount):
        memory.require(f"{amount} boxes need", amount, amount * 10**9, lambda most: f"take {most}")

    monkeypatch.setattr(memory, "free", lambda: 5 * 10**9)
    ask(5)
    with pytest.raises(UsageError, match=r"^6 boxes need 6 GB of memory, and 5 GB are free; take 4$"):
        ask(6)
    with pytest.raises(UsageError, match=r"^12345 boxes need 12,345 GB of memory, and 5 GB are free; take 4$"):
        ask(12345)
    monkeypatch.setattr(memory, "free", lambda: 1_234_567)
    with pytest.raises(UsageError, match=r"^1 boxes need 1 GB of memory, and 0.00123 GB are free; make room first$"):
        ask(1)
