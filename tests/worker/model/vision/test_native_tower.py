"""Encoders by our kernels."""

from dataclasses import replace

import pytest
import torch
from torch.nn import functional

from dormouse_worker.executor.testing import make_settings
from dormouse_worker.executor.worker.cpu_worker import CpuWorker
from dormouse_worker.model.testing_vision import draw_picture
from dormouse_worker.native.library import load_kernels
from tests.worker.model.asked import Asked

attend = functional.scaled_dot_product_attention


@pytest.mark.parametrize("family", ["llava", "smolvlm"])
def test_a_towers_rows_are_about_those_of_torch(seeing, family):
    """The way reaches the tower's own maps, norms, gates and attention."""
    worker = CpuWorker(make_settings(seeing(family), dtype="bfloat16", image_dir="unused"), 0)
    worker.init_device()
    worker.load_model()
    tower, tensors = worker._model.tower, draw_picture(family, 1).tensors
    if "pixel_attention_mask" in tensors:
        tensors["pixel_attention_mask"].fill_(1)  # patches that fill a tile up are masked, and torch's
    with Asked() as asked:
        rows = replace(tower, is_widened=False, kernels=load_kernels()).compute(tensors)
    with Asked() as by_torch:
        plain = replace(tower, is_widened=False, kernels=None).compute(tensors)
    worker.shutdown()
    assert not asked.named
    assert {attend, functional.linear} <= set(by_torch.named)
    torch.testing.assert_close(rows, plain, rtol=2**-5, atol=2**-5 * float(plain.abs().max()))
