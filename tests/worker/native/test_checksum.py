"""Every variant's checksum is the one that is taken without kernels, wherever in memory the bytes begin."""

from __future__ import annotations

import pytest
import torch

from dormouse_worker.model import checksum as module
from dormouse_worker.model.checksum import BLOCK_BYTES
from dormouse_worker.native.library import Missing


@pytest.mark.parametrize("offset", [0, 1, 8])
@pytest.mark.parametrize("num_bytes", [0, 5, 4096, 7 * 4096 + 9, BLOCK_BYTES - 1, BLOCK_BYTES, 2 * BLOCK_BYTES + 4097])
@pytest.mark.parametrize("first_block", [0, 1 << 20])
def test_it_is_the_one_of_numpy(kernels, monkeypatch, offset, num_bytes, first_block):
    data = torch.randint(0, 256, (offset + num_bytes,), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    monkeypatch.setattr(module, "load_kernels", lambda: Missing("none shall compute"))
    expected = module.checksum(data[offset:].clone(), first_block)
    assert kernels.checksum(data.data_ptr() + offset, num_bytes, first_block) == expected
