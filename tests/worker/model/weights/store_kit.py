"""A store of some weights on a device, and whether they are there."""

import torch

from dormouse_worker.common.host import Host
from dormouse_worker.model.device.testing import FakeDevice
from dormouse_worker.model.weights.testing import make_store

MIB = 1 << 20
TENSORS = {
    "embedding": torch.randn(1100, 1500),  # 6.6 MB: over several windows, and not a whole number of blocks
    "norm": torch.randn(1500),
    "scale": torch.randn(()),
    "steps": torch.arange(7),
    "head": torch.randn(300, 1500).bfloat16(),
}
EXTRAS = {"inv_freq": torch.randn(32)}
ALL = {**TENSORS, **EXTRAS}


class SmallHost(Host):
    """A host with as much memory left as the test says."""

    def __init__(self, left_bytes=1 << 40):
        super().__init__()
        self.left_bytes = left_bytes

    def available_bytes(self):
        return self.left_bytes


class Kit:
    """A loaded store, its device and views of all tensors, by whose addresses a module would compute."""

    def __init__(self, device, **options):
        self.device = device
        self.store, self.source = make_store(device, TENSORS, EXTRAS, **options)
        self.store.load("auto")
        self.views = {name: self.store.tensor(name) for name in ALL}

    def sleep(self, level):
        self.store.save(level)
        return self.store.drop()

    def wake(self):
        self.store.reserve()
        self.store.restore()
        self.store.settle()

    def assert_awake(self):
        assert not self.store.is_asleep
        assert all(torch.equal(self.views[name], tensor) for name, tensor in ALL.items())
        self.store.check_integrity()

    @property
    def held(self):
        """Device bytes, host copy bytes, and whether it is asleep."""
        return self.store._arena.size_bytes, self.store.host_copy_bytes, self.store.is_asleep


class CopyEngine(FakeDevice):
    """Copies beside whoever asked for it."""

    has_copy_engine = True


WHOLE = 8 * MIB  # what the tensors take in whole pages
