"""What tests of the cache's memory do with it, and hosts and devices that lack something."""

import torch

from dormouse_worker.common.host import Host
from dormouse_worker.model.device.testing import FakeDevice


class SmallHost(Host):
    """A host with so much memory left."""

    def __init__(self, available_bytes):
        super().__init__()
        self.left_bytes = available_bytes

    def available_bytes(self):
        return self.left_bytes


class LostDevice(FakeDevice):
    """A device that copies nothing any more."""

    def copy(self, target, source):
        raise RuntimeError(f"the device is lost: {len(source)} bytes did not reach {target.device}")


def fill(store):
    """Give every block contents of its own; return them."""
    for number, pool in enumerate(store.cache.by_block(), 1):
        pool.copy_(torch.arange(len(pool)).view(-1, 1, 1, 1) + 100 * number)
    return contents(store)


def contents(store):
    return [pool.clone() for pool in store.cache.by_block()]


def is_zero(store):
    return not any(pool.any() for pool in store.cache.by_block())


def sleep(store, level=1, kept=()):
    store.keep(kept)
    store.save(level)
    store.drop()


def wake(store):
    store.reserve()
    store.restore()
    store.put_back()
    store.settle()
