"""What a burst took is given back."""

import ctypes
import ctypes.util
from pathlib import Path

from dormouse_operator.memory import trim

BLOCK_BYTES, NUM_BLOCKS = 4096, 20_000


def resident_bytes():
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) << 10


def test_holes_in_the_heap_are_given_back():
    libc = ctypes.CDLL(None)
    libc.malloc.restype = libc.memset.restype = ctypes.c_void_p
    libc.free.argtypes = [ctypes.c_void_p]
    libc.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
    blocks = [libc.memset(libc.malloc(BLOCK_BYTES), 1, BLOCK_BYTES) for _ in range(NUM_BLOCKS)]
    last = libc.malloc(BLOCK_BYTES)  # at the end of the heap: nothing before it goes by itself
    for block in blocks:
        libc.free(block)
    before_bytes = resident_bytes()
    assert trim()
    assert before_bytes - resident_bytes() > BLOCK_BYTES * NUM_BLOCKS // 2
    libc.free(last)
