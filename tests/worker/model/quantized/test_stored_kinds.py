"""Each kind of checkpoint gives the weights that its tool wrote, whichever rows are asked for."""

import pytest
import torch

from dormouse_worker.model.quantized.stored_config import read_kind
from dormouse_worker.model.quantized.stored_kinds import Awq, Gptq, Packed, Scaled, Unreadable
from tests.worker.model.quantized.checkpoints import KINDS, gptq

ROWS, COLUMNS = 40, 48


def make(kind, rows=ROWS):
    weight = torch.randn(rows, COLUMNS, generator=torch.Generator().manual_seed(3))
    said, maker = KINDS[kind]
    return read_kind(said), *maker(weight), weight


@pytest.mark.parametrize("kind", KINDS)
def test_the_weights_are_those_of_the_format(kind):
    stored_as, parts, plain, weight = make(kind)
    found = stored_as.rows_of(parts, 0, ROWS, COLUMNS)
    torch.testing.assert_close(found, plain, atol=1e-6, rtol=1e-6)
    assert (found - weight).abs().max() < 0.4, "and near what was rounded"


@pytest.mark.parametrize("kind", KINDS)
def test_any_rows_are_those_of_the_whole(kind):
    stored_as, parts, _, _ = make(kind)
    whole = stored_as.rows_of(parts, 0, ROWS, COLUMNS)
    for first, end in ((0, 1), (3, 17), (7, 8), (32, 40), (39, 40)):
        assert torch.equal(stored_as.rows_of(parts, first, end, COLUMNS), whole[first:end])


@pytest.mark.parametrize("kind", KINDS)
def test_the_parts_have_the_shapes_and_types_that_are_asked_for(kind):
    stored_as, parts, _, _ = make(kind)
    names = {torch.int32: "I32", torch.int8: "I8", torch.float8_e4m3fn: "F8_E4M3"}
    wanted = stored_as.parts(ROWS, COLUMNS)
    assert parts.keys() - stored_as.beside <= wanted.keys()
    for name, part in wanted.items():
        if name in parts:
            assert tuple(parts[name].shape) in part.shapes
            assert names.get(parts[name].dtype, "F32") in part.dtypes
        else:
            assert not part.is_needed


@pytest.mark.parametrize(
    ("kind", "shape", "words"),
    [
        (Gptq(4, 16, 1), (8, 24), "has 24 inputs, which is no multiple of 16"),
        (Gptq(4, -1, 1), (7, 16), "has 7 outputs, which is no multiple of 8"),
        (Gptq(8, -1, 1), (4, 6), "has 6 inputs, which is no multiple of 4"),
        (Awq(16), (12, 16), "has 12 outputs, which is no multiple of 8"),
        (Awq(32), (8, 16), "has 16 inputs, which is no multiple of 32"),
        (Packed(4, 7, is_symmetric=True, is_ordered=False), (8, 16), "has 16 inputs, which is no multiple of 7"),
    ],
)
def test_groups_and_words_that_do_not_divide_are_refused(kind, shape, words):
    with pytest.raises(Unreadable, match=words):
        kind.parts(*shape)


@pytest.mark.parametrize(("group", "named"), [(3, 3), (-1, -1)])
def test_a_group_that_is_not_there_is_refused(group, named):
    parts, _ = gptq(torch.randn(8, 48))
    parts["g_idx"][5] = group
    with pytest.raises(Unreadable, match=f"names group {named}, and has groups 0 to 2"):
        Gptq(4, 16, 1).rows_of(parts, 0, 8, 48)


def test_a_zero_of_15_is_written_less_one_as_all_bits_and_is_one_of_0():
    """As others read it: of GPTQ's first format, zero plus one takes four bits."""
    parts, _ = gptq(torch.randn(8, 48))
    parts["qzeros"].fill_(-1)
    assert Gptq(4, 16, 1).grouped_rows(parts, 0, 8, 48).zeros.unique().tolist() == [0]


def test_an_order_that_is_left_out_is_the_plain_one():
    parts, plain = gptq(torch.randn(8, 48))
    del parts["g_idx"]
    torch.testing.assert_close(Gptq(4, 16, 1).rows_of(parts, 0, 8, 48), plain)


def test_a_block_that_is_larger_than_the_map_takes_no_more_memory_than_the_map():
    kind = Scaled("F8_E4M3", "fp8", "weight_scale_inv", (1 << 40, 1 << 40))
    parts = {"weight": torch.ones(4, 6), "weight_scale_inv": torch.full((1, 1), 0.5)}
    assert torch.equal(kind.rows_of(parts, 1, 4, 6), torch.full((3, 6), 0.5))


def test_an_order_that_the_configuration_tells_of_is_needed():
    """Without it weights would have the scales of other groups."""
    said = {"quant_method": "gptq", "bits": 4, "group_size": 16, "desc_act": True}
    assert read_kind(said).parts(8, 48)["g_idx"].is_needed
    assert not read_kind({**said, "group_size": -1}).parts(8, 48)["g_idx"].is_needed, "there is one group"
    assert not read_kind({**said, "desc_act": False}).parts(8, 48)["g_idx"].is_needed
