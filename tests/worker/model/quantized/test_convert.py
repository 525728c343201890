"""Which parts of a module are quantized, which stay as they are, and which are refused by name."""

import pytest
import torch
from torch import nn

from dormouse_worker.common.errors import InvalidSettings
from dormouse_worker.model.quantized.blocks import MOST_INPUTS
from dormouse_worker.model.quantized.convert import convert
from dormouse_worker.model.quantized.modules import QuantizedLinear
from dormouse_worker.model.quantized.online import Replaced
from dormouse_worker.model.quantized.rounding import INT4, INT8
from dormouse_worker.model.weights.layout import Slot


class ScaledEmbedding(nn.Embedding):
    """Does more than look up, as Gemma's do."""


class OwnLinear(nn.Linear):
    """Does something of its own."""


def model_of(**parts):
    """Return a module of these parts, which takes no memory."""
    return nn.ModuleDict(parts).to("meta")


def test_the_widest_map_is_taken_and_one_that_is_wider_is_refused():
    with torch.device("meta"):
        model = model_of(up=nn.Linear(MOST_INPUTS, 2))
        wide = model_of(first=nn.Linear(4, 4), down=nn.Linear(MOST_INPUTS + 1, 2))
    assert convert(model, "int8") == {
        "up.weight": Replaced(Slot("up.weight", 0, (2, MOST_INPUTS), torch.float32), INT8)
    }
    with pytest.raises(
        InvalidSettings,
        match=r"^quantization is int8, which down cannot have: it has 65537 inputs, and 65536 are the most; set",
    ):
        convert(wide, "int8")
    assert type(wide["first"]) is nn.Linear, "nothing was replaced"


def test_a_map_of_a_kind_of_its_own_is_refused():
    with pytest.raises(InvalidSettings, match=r"which own cannot have: it is a OwnLinear; set quantization to none$"):
        convert(model_of(own=OwnLinear(3, 4)), "int8")


def test_a_head_that_is_tied_to_an_embedding_which_does_more_than_look_up_stays_as_it_is():
    head, embedding = nn.Linear(3, 4, bias=False), ScaledEmbedding(4, 3)
    head.weight = embedding.weight
    model = nn.ModuleDict({"embedding": embedding, "up": nn.Linear(3, 5), "head": head})
    assert convert(model, "int8").keys() == {"up.weight"}
    assert (type(model["up"]), model["head"].weight) == (QuantizedLinear, model["embedding"].weight)


def test_of_4_bits_the_head_has_8():
    class Model(nn.ModuleDict):
        def get_output_embeddings(self):
            return self.head

    model = Model({"up": nn.Linear(3, 5), "head": nn.Linear(3, 4)})
    assert {name: found.rounding for name, found in convert(model, "int4").items()} == {
        "up.weight": INT4,
        "head.weight": INT8,
    }
    assert (model["up"].weight.shape, model["head"].weight.shape) == ((5, 66), (4, 3))


def test_two_maps_of_one_weight_share_its_numbers():
    first, second = nn.Linear(3, 4), nn.Linear(3, 4)
    second.weight = first.weight
    model = nn.ModuleDict({"first": first, "second": second})
    assert convert(model, "int8").keys() == {"first.weight", "second.weight"}
    assert model["first"].weight is model["second"].weight
    assert model["first"].weight_scale is model["second"].weight_scale
    assert model["first"].bias is first.bias
    assert model["second"].bias is second.bias
