"""Kits of stores, closed in the end."""

import pytest

from dormouse_worker.model.device.testing import FakeDevice
from tests.worker.model.weights.store_kit import Kit


@pytest.fixture
def make_kit():
    """Return a function (device, options) → kit, all closed in the end."""
    kits = []

    def make(device=None, **options):
        kits.append(Kit(device or FakeDevice(), **options))
        return kits[-1]

    yield make
    for kit in kits:
        kit.store.close()
        driver = kit.device.memory
        assert getattr(driver, "used_bytes", 0) == 0
        assert "0 chunks" in repr(kit.device.copies or driver)
