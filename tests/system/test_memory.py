import platform
import subprocess
import sys

import numpy as np
import psutil
import pytest

from lib.errors import UsageError
from lib.system import memory

# Print the page faults of allocating, filling and freeing six blocks of 8 MiB forty times, like activations of a batch.
BLOCKS = """
import resource, sys
import numpy as np
from lib.system import memory
if sys.argv[1] == "keep":
    assert memory.keep_freed_memory()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(40):
    activations = [np.ones(2**20) for _ in range(6)]
    del activations
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="a setting of glibc")
def test_freed_memory_is_reused_without_page_faults():
    def faults(how):
        return int(subprocess.run([sys.executable, "-c", BLOCKS, how], capture_output=True, text=True).stdout)

    assert faults("keep") < 0.1 * faults("default")


def group(folder, limit, use, cache):
    (folder / "memory.max").write_text(f"{limit}\n")
    (folder / "memory.current").write_text(f"{use}\n")
    (folder / "memory.stat").write_text(f"anon 5\ninactive_file {cache}\n")
    return ((str(folder), "memory.max", "memory.current", "inactive_file"),)


def test_free_memory_is_the_rest_of_the_control_groups_limit_without_its_cache(tmp_path):
    assert memory.free(group(tmp_path, 1000, 800, 300)) == 500
    assert memory.free(group(tmp_path, 1000, 1200, 100)) == 0


def test_without_a_limit_free_memory_is_that_of_the_machine(tmp_path):
    for groups in (group(tmp_path, "max", 800, 300), (), (("/no/such", "a", "b", "c"),)):
        assert 0 < memory.free(groups) <= psutil.virtual_memory().total
    assert 0 < memory.free() <= psutil.virtual_memory().total


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="a function of glibc")
def test_free_gaps_between_used_blocks_are_returned_to_the_system():
    process = psutil.Process()
    trim = memory.Trimmer()
    blocks = [np.ones(100_000, np.uint8) for _ in range(8000)]
    del blocks[::2]  # 400 MB in 4,000 gaps
    before = process.memory_info().rss
    trim()
    assert process.memory_info().rss < before - 300e6
    assert all(int(block.sum()) == 100_000 for block in blocks)


def test_memory_is_returned_only_after_the_process_has_grown(monkeypatch):
    trim = memory.Trimmer()
    calls = []
    monkeypatch.setattr(trim, "_trim", calls.append)
    trim()
    assert calls == []
    trim._last_rss -= memory.KEPT + 10**8
    trim()
    assert calls == [0]
    trim()
    assert calls == [0]  # growth is measured from the last call


def test_an_allocation_that_does_not_fit_is_rejected_with_the_amount_that_would(monkeypatch):
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
