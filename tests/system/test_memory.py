import platform

import numpy as np
import psutil
import pytest
import torch

from lib.system import memory
from running import start_program

# Print the page faults of allocating, filling and freeing six blocks of 8 MiB forty times, like activations of a batch,
# with glibc's default and with freed memory kept.
BLOCKS = """
import resource
import numpy as np
from lib.system import memory
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(40):
        activations = [np.ones(2**20) for _ in range(6)]
        del activations
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
print(faults())
memory.keep_freed_memory()
print(faults())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="a setting of glibc")
def test_freed_memory_is_reused_without_page_faults(tmp_path):
    output, errors = start_program(BLOCKS, tmp_path).communicate()
    default, kept = map(int, output.split())
    assert kept < 0.1 * default, errors


def test_free_memory_is_the_rest_of_the_smallest_limit_of_the_control_groups_without_its_cache(monkeypatch, tmp_path):
    monkeypatch.setattr(memory, "GROUP", tmp_path / "cgroup")
    monkeypatch.setattr(memory, "GROUPS", tmp_path / "groups")

    def group(path, limit, use=800, cache=0):
        folder = tmp_path / "groups" / path
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "memory.max").write_text(f"{limit}\n")
        (folder / "memory.current").write_text(f"{use}\n")
        (folder / "memory.stat").write_text(f"anon 5\ninactive_file {cache}\n")
        (tmp_path / "cgroup").write_text(f"9:name=systemd:/\n0::/{path}\n")

    group("", "max")
    assert 1000 < memory.free() <= psutil.virtual_memory().total
    group("", 1000, 800, 300)
    assert memory.free() == 500
    memory.GROUP.write_text("0::/system.slice/docker-3.scope\n")  # not visible in the container
    assert memory.free() == 500
    group("job_7", 900)
    group("job_7/step_0/task_0", 1000)
    assert memory.free() == 100


def test_a_lack_of_memory_is_told_from_other_errors():
    assert memory.shortage(RuntimeError("the paddle broke")) is None
    error = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 GiB. GPU 0 has a capacity of")
    assert "memory ran out: CUDA out of memory. Tried to allocate 20 GiB. What" in str(memory.shortage(error))
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**60, dtype=torch.uint8)
    assert "DefaultCPUAllocator: can't allocate memory" in str(memory.shortage(caught.value))
    with pytest.raises(MemoryError) as refused:
        np.empty(2**60, np.uint8)
    assert "memory ran out: Unable to allocate 1.00 EiB for an array" in str(memory.shortage(refused.value))


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
