"""Large operations in small steps: the rows of the whole, and no step that text waits for longer than milliseconds."""

import math

import pytest
import torch
from torch.nn import functional

from dormouse_worker.model.testing_vision_families import CASES
from dormouse_worker.model.vision.small_steps import Most, SmallSteps

IN_EACH_RUN = {"llava", "qwen2_5_vl", "smolvlm"}


class Count(torch.overrides.TorchFunctionMode):
    """Counts operations."""

    num_calls = 0

    def __torch_function__(self, function, types, args=(), kwargs=None):
        self.num_calls += 1
        return function(*args, **(kwargs or {}))


class Attended(torch.overrides.TorchFunctionMode):
    """Notes for how many queries torch attends."""

    def __init__(self):
        super().__init__()
        self.lengths = []

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function is functional.scaled_dot_product_attention:
            self.lengths.append(args[0].shape[-2])
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    "family",
    [pytest.param(family, marks=() if family in IN_EACH_RUN else pytest.mark.slow) for family in sorted(CASES)],
)
def test_large_operations_in_small_steps_give_the_same_rows(seen, family):
    tower, image = seen(family)
    tensors = tower._read(image)
    with torch.inference_mode():
        with Count() as large:
            whole = tower.module.model.get_image_features(**tensors).pooler_output
        with Count() as small, SmallSteps(Most(operations=1000, attention=1000, numbers=50)):
            parts = tower.module.model.get_image_features(**tensors).pooler_output
    for one, other in zip(whole, parts, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3)
    assert small.num_calls > 2 * large.num_calls


def test_a_large_operation_takes_a_few_milliseconds_at_most():
    """Whoever decodes text waits for its end: a linear map of 1.2 billion operations has several."""
    rows, weight = torch.ones(1024, 768), torch.ones(768, 768)
    with Count() as steps, SmallSteps():
        functional.linear(rows, weight)
    with Count() as looked, SmallSteps():
        functional.gelu(torch.ones(1024, 3072))
    assert steps.num_calls >= 2 * rows.numel() * len(weight) / (1 << 28)
    assert looked.num_calls >= 1024 * 3072 / (1 << 19)


@pytest.mark.parametrize("shape", [None, (1, 1, 1, 1024), (1, 1, 1024, 1024)])
def test_one_heads_attention_is_cut_by_queries(shape):
    """A head over 1,024 patches has 2^28 operations, for which torch takes three milliseconds of a core."""
    query, key, value = torch.randn(3, 1, 1, 1024, 64, generator=torch.Generator().manual_seed(1)).unbind()
    mask = None if shape is None else torch.arange(math.prod(shape)).reshape(shape) % 3 > 0
    whole = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
    with Attended() as attended, SmallSteps():
        parts = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
    assert attended.lengths == [256] * 4
    torch.testing.assert_close(parts, whole, rtol=1e-5, atol=1e-6)


def test_attention_that_looks_back_is_one_step():
    """Which queries there are decides what one sees."""
    rows = torch.randn(1, 1, 1024, 64, generator=torch.Generator().manual_seed(1))
    whole = functional.scaled_dot_product_attention(rows, rows, rows, is_causal=True)
    with Attended() as attended, SmallSteps():
        parts = functional.scaled_dot_product_attention(rows, rows, rows, is_causal=True)
    assert attended.lengths == [1024]
    assert torch.equal(parts, whole)
