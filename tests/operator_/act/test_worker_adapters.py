"""What a worker tells of an adapter becomes a noun, whatever its version."""

from __future__ import annotations

import pytest

from dormouse_api.v1 import worker_control_pb2 as pb
from dormouse_operator.act.worker_adapters import parse_adapter
from dormouse_operator.model.adapters import HeldAdapter
from dormouse_operator.testing.adapters import to_told


@pytest.mark.parametrize("kind", ["", "LoRA", "ActivatedLoRA", "SoftPrompt"])
def test_what_is_told_is_what_is_held(kind):
    held = HeldAdapter(name="a", path="/a", state="LOADED", digest="d", kind=kind, rank=8, virtual_tokens=6)
    assert parse_adapter(to_told(held)) == held


def test_a_kind_of_a_later_worker_is_not_told():
    assert parse_adapter(pb.LoraAdapter(name="a", kind=99)).kind == ""
