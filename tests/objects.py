"""How many objects this process has, for tests of what stays behind."""

import gc
import sys


def num_objects() -> int:
    """Return how many blocks Python's own allocator has handed out: one or two for each object.

    The interpreter's cache of attributes is emptied before: it keeps names that C code makes anew for each look-up.
    """
    gc.collect()
    sys._clear_type_cache()
    return sys.getallocatedblocks()
