"""The function registered with transformers: what it passes on and what it refuses."""

from dataclasses import replace

import pytest
import torch

from dormouse_worker.common.errors import ModelInvalid
from dormouse_worker.model.attention.hook import DiscoveryContext, paged_attention
from dormouse_worker.model.attention.interface import AttentionShape
from dormouse_worker.model.context import AttentionCall, current_context, forward_context


class RecordingContext:
    """Answers with the query and remembers what was asked."""

    def __init__(self):
        self.calls = []

    def attend(self, call, query, key, value):
        self.calls.append((call, query.shape, key.shape, value.shape))
        return query


def make_module(**attributes):
    module = torch.nn.Module()
    for name, value in {"layer_idx": 1, "is_causal": True, **attributes}.items():
        setattr(module, name, value)
    return module


QUERY, KEY = torch.randn(1, 4, 3, 8), torch.randn(1, 2, 3, 8)


def test_heads_go_last_and_come_back_in_the_order_of_transformers():
    context = RecordingContext()
    with forward_context(context):
        output, weights = paged_attention(
            make_module(), QUERY, KEY, KEY, None, scaling=0.25, sliding_window=7, softcap=30.0, dropout=0.0
        )
    call, query_shape, key_shape, _ = context.calls[0]
    assert call == AttentionCall(1, 0.25, 7, 30.0, None)
    assert (query_shape, key_shape) == ((3, 4, 8), (3, 2, 8))
    assert torch.equal(output, QUERY.transpose(1, 2))
    assert weights is None


def test_without_a_scale_it_is_one_over_the_root_of_the_head_size():
    context = RecordingContext()
    with forward_context(context):
        paged_attention(make_module(), QUERY, KEY, KEY, None)
    assert context.calls[0][0].scale == 8**-0.5


@pytest.mark.parametrize(
    ("module", "mask", "kwargs", "what"),
    [
        (make_module(is_causal=False), None, {}, "not causal"),
        (make_module(layer_idx=None), None, {}, "without a layer index"),
        (make_module(), torch.zeros(1), {}, "an attention mask of its own"),
        (make_module(), None, {"position_bias": torch.zeros(1)}, "a position bias"),
    ],
)
def test_what_the_paged_cache_does_not_offer_is_refused_by_name(module, mask, kwargs, what):
    with pytest.raises(ModelInvalid, match=what):
        paged_attention(module, QUERY, KEY, KEY, mask, **kwargs)


def test_discovery_refuses_a_layer_that_attends_twice():
    with forward_context(DiscoveryContext()):
        paged_attention(make_module(), QUERY, KEY, KEY, None)
        with pytest.raises(ModelInvalid, match="layer 1 attends twice"):
            paged_attention(make_module(), QUERY, KEY, KEY, None)


def test_discovery_sees_what_each_layer_stores():
    context = DiscoveryContext()
    with forward_context(context):
        output, _ = paged_attention(make_module(), QUERY, KEY, KEY[..., :5], None, sliding_window=9)
    assert (context.layers[1].num_kv_heads, context.layers[1].key_size, context.layers[1].value_size) == (2, 8, 5)
    assert context.calls == {1: AttentionCall(1, 8**-0.5, 9)}
    assert output.shape == (1, 3, 4, 5)


def test_discovery_tells_backends_each_different_shape_once():
    context = DiscoveryContext()
    with forward_context(context):
        for layer_idx, options in enumerate(({}, {"softcap": 3.0, "s_aux": torch.zeros(4)}, {})):
            paged_attention(make_module(layer_idx=layer_idx), QUERY, KEY, KEY[..., :5], None, **options)
    plain = AttentionShape(4, 2, 8, 5, torch.float32, 16)
    assert context.shapes(16) == (plain, replace(plain, has_soft_cap=True, has_sinks=True))


def test_the_context_ends_with_its_block_even_after_an_error():
    with pytest.raises(ZeroDivisionError), forward_context(RecordingContext()):
        _ = 1 / 0
    with pytest.raises(AssertionError, match="outside a forward pass"):
        current_context()


def test_contexts_do_not_nest():
    with forward_context(RecordingContext()), pytest.raises(AssertionError), forward_context(RecordingContext()):
        pass
