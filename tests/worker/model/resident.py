"""Asks the kernel what it holds of an array: the resident memory of the process also falls while others free theirs."""

import ctypes
import mmap


def resident_share(array):
    """Return the share of a numpy array's pages that the kernel has put memory behind."""
    start = array.ctypes.data // mmap.PAGESIZE * mmap.PAGESIZE
    num_pages = -(-(array.ctypes.data + array.nbytes - start) // mmap.PAGESIZE)
    pages = (ctypes.c_ubyte * num_pages)()
    done = ctypes.CDLL(None).mincore(ctypes.c_void_p(start), ctypes.c_size_t(num_pages * mmap.PAGESIZE), pages)
    assert done == 0
    return sum(page & 1 for page in pages) / num_pages
