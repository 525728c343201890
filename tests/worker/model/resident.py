"""Asks the kernel what it holds of an array: the resident memory of the process also falls while others free theirs."""

import ctypes
import mmap
from pathlib import Path


def resident_share(array):
    """Return the share of a numpy array's pages that the kernel has put memory behind."""
    start = array.ctypes.data // mmap.PAGESIZE * mmap.PAGESIZE
    num_pages = -(-(array.ctypes.data + array.nbytes - start) // mmap.PAGESIZE)
    pages = (ctypes.c_ubyte * num_pages)()
    done = ctypes.CDLL(None).mincore(ctypes.c_void_p(start), ctypes.c_size_t(num_pages * mmap.PAGESIZE), pages)
    assert done == 0
    return sum(page & 1 for page in pages) / num_pages


def lines_of_mapping(address):
    """Yield what /proc/self/smaps says of the mapping that holds this address."""
    is_it = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        bounds, _, _ = line.partition(" ")
        start, dash, end = bounds.partition("-")
        if dash:
            is_it = int(start, 16) <= address < int(end, 16)
        elif is_it:
            yield line


def is_advised_huge(address):
    """Return whether the kernel was asked for huge pages at this address, and knows of such."""
    (flags,) = [line.split()[1:] for line in lines_of_mapping(address) if line.startswith("VmFlags:")]
    return "hg" in flags
