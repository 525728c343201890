"""Blocks of a store's tests, and the files that they lie in."""

import random

from dormouse_worker.kv_store.interface import Block

REALM, OTHER_REALM = bytes(32), bytes([1]) * 32
SIZE = 5000
TAKEN = 8192  # of the disk by one block


def content(seed, size=SIZE):
    return random.Random(seed).randbytes(size)


def block(name, data=None):
    return Block(name, memoryview(content(name) if data is None else data))


def read(store, name, size=SIZE):
    """Return the block, or why it is missed."""
    into = memoryview(bytearray(size))
    miss = store.read(name, into)
    return bytes(into) if miss is None else miss


def taken(root):
    """Return what the files below the root take, counted anew."""
    files = (file for file in root.rglob("*") if file.is_file() and file.name not in {"lock", "users"})
    return sum(-(-file.stat().st_size // 4096) * 4096 for file in files)


def file_of(root, name, realm=REALM):
    return root / realm.hex() / f"{name.hex()}.kv"
