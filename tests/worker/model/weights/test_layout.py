"""Where tensors lie in the weights arena."""

import torch

from dormouse_worker.model.weights.layout import ALIGNMENT_BYTES, plan_layout


def offsets(layout):
    return {slot.name: slot.offset for slot in layout.slots}


def test_every_tensor_begins_at_a_multiple_of_the_alignment():
    layout = plan_layout([("a", torch.ones(3)), ("b", torch.ones(200)), ("c", torch.ones(1, dtype=torch.int8))])
    assert offsets(layout) == {"a": 0, "b": ALIGNMENT_BYTES, "c": 3 * ALIGNMENT_BYTES}
    assert layout.num_bytes == 3 * ALIGNMENT_BYTES + 1


def test_a_tied_tensor_lies_there_once():
    tied = torch.ones(4)
    layout = plan_layout([("embedding", tied), ("norm", torch.ones(4)), ("head", tied)])
    assert list(offsets(layout)) == ["embedding", "norm"]
    assert layout.aliases == {"head": "embedding"}


def test_another_tensor_object_of_the_same_memory_is_the_same():
    tied = torch.ones(4)
    layout = plan_layout([("embedding", tied), ("head", tied.detach())])
    assert layout.aliases == {"head": "embedding"}


def test_meta_tensors_are_tied_by_identity_alone():
    with torch.device("meta"):
        first, second = torch.empty(4), torch.empty(4)
    layout = plan_layout([("a", first), ("b", second), ("c", first)])
    assert list(offsets(layout)) == ["a", "b"]
    assert layout.aliases == {"c": "a"}


def test_joined_tensors_lie_without_a_gap_where_the_first_stands():
    names = ["q", "norm", "k", "v", "o"]
    layout = plan_layout([(name, torch.ones(3, 2)) for name in names], joined=[("q", "k", "v")])
    assert offsets(layout) == {"q": 0, "k": 24, "v": 48, "norm": 512, "o": 1024}


def test_a_group_with_a_tied_member_is_not_joined():
    tied = torch.ones(4)
    layout = plan_layout([("a", tied), ("q", torch.ones(4)), ("k", tied)], joined=[("q", "k")])
    assert offsets(layout) == {"a": 0, "q": 512}


def test_nothing_needs_no_bytes():
    assert plan_layout([]).num_bytes == 0
