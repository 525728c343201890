"""Among several backends that can compute a model the fastest is taken, and one that fails on the device is not."""

import pytest
import torch

from dormouse_worker.common.errors import Internal
from dormouse_worker.model.attention.interface import AttentionShape, BackendSizes, EagerBackend
from dormouse_worker.model.attention.sdpa import SdpaBackend
from dormouse_worker.model.attention.select import fastest

CPU = torch.device("cpu")
SIZES = BackendSizes((AttentionShape(4, 2, 16, 16, torch.float32, block_size=4),), max_num_seqs=2, max_model_len=64)


class Broken(EagerBackend):
    """A backend whose kernels do not launch."""

    name = "broken"

    def __init__(self, sizes):
        pass

    def plan(self, *_):
        raise RuntimeError("no kernel image is available")


def test_one_that_fails_is_not_taken():
    assert isinstance(fastest({"broken": Broken, "sdpa": SdpaBackend}, SIZES, CPU, 32), SdpaBackend)


def test_if_all_fail_their_words_are_told():
    with pytest.raises(Internal, match="broken: RuntimeError: no kernel image is available"):
        fastest({"broken": Broken}, SIZES, CPU, 32)
