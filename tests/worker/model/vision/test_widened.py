"""An encoder whose weights have 16 bits, on processors that multiply 32: the rows of the same model in float32."""

import copy
from dataclasses import replace

import pytest
import torch
from torch.overrides import TorchFunctionMode

from dormouse_worker.executor.testing import make_settings
from dormouse_worker.executor.worker.cpu_worker import CpuWorker
from dormouse_worker.model.testing_hearing import HEARING
from dormouse_worker.model.testing_vision import draw_picture
from dormouse_worker.model.testing_vision_families import CASES
from dormouse_worker.model.vision.widened import STRICT, Widened, is_better_widened

IN_EACH_RUN = {"qwen2_5_vl", "qwen2_audio"}


class Kinds(TorchFunctionMode):
    """Notes what operations were given that take one kind only."""

    def __init__(self):
        super().__init__()
        self.found = set()

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function in STRICT:
            given = [*args, *(kwargs or {}).values()]
            self.found |= {
                value.dtype for value in given if isinstance(value, torch.Tensor) and value.dtype.is_floating_point
            }
        return function(*args, **(kwargs or {}))


@pytest.fixture
def make_tower(seeing):
    """Return a function: a family → its tower in bfloat16."""
    made = []

    def make(family):
        made.append(CpuWorker(make_settings(seeing(family), dtype="bfloat16", image_dir="unused"), 0))
        made[-1].init_device()
        made[-1].load_model()
        return made[-1]._model.tower

    yield make
    for worker in made:
        worker.shutdown()


def computed(tower, tensors, *, is_widened):
    """Return rows, and what kinds of numbers they were made of."""
    with Kinds() as kinds:
        rows = replace(tower, is_widened=is_widened).compute(tensors)
    return rows, kinds.found


@pytest.mark.parametrize(
    "family",
    [
        pytest.param(family, marks=() if family in IN_EACH_RUN else pytest.mark.slow)
        for family in sorted(CASES | HEARING)
    ],
)
def test_rows_are_those_of_float32(make_tower, family):
    tower, tensors = make_tower(family), draw_picture(family, 1).tensors
    rows, kinds = computed(tower, tensors, is_widened=True)
    assert (rows.dtype, kinds) == (torch.bfloat16, {torch.float32})
    assert {parameter.dtype for parameter in tower.module.parameters()} == {torch.bfloat16}, "kept as they were"
    _, kinds = computed(tower, tensors, is_widened=False)
    assert kinds == {torch.bfloat16}
    rounded = {name: t.bfloat16().float() if t.is_floating_point() else t for name, t in tensors.items()}
    whole = replace(tower, module=copy.deepcopy(tower.module).float(), dtype=torch.float32, is_widened=False)
    exact = whole.compute(rounded)
    torch.testing.assert_close(rows.float(), exact, rtol=2**-7, atol=2**-7 * float(exact.abs().max()))


def test_maps_over_time_are_widened_too():
    window, kernel = torch.ones(1, 2, 8, dtype=torch.bfloat16), torch.ones(3, 2, 3, dtype=torch.bfloat16)
    with Widened():
        assert torch.conv1d(window, kernel).dtype == torch.float32


@pytest.mark.parametrize(
    ("said", "is_better"),
    [
        ("flags\t\t: fpu avx2 fma avx512f", True),
        ("flags\t\t: fpu avx512f avx512_bf16 avx512_vnni", False),
        ("Features\t: fp asimd bf16 i8mm", False),
        ("Features\t: fp asimd svebf16", True),
    ],
)
def test_it_is_for_processors_that_do_not_multiply_bfloat16(tmp_path, said, is_better):
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(f"processor\t: 0\n{said}\n")
    assert is_better_widened(torch.device("cpu"), torch.bfloat16, cpuinfo) == is_better
    assert not is_better_widened(torch.device("cpu"), torch.float32, cpuinfo)
    assert not is_better_widened(torch.device("cuda"), torch.bfloat16, cpuinfo)
    assert not is_better_widened(torch.device("cpu"), torch.bfloat16, tmp_path / "none"), "nobody tells"
