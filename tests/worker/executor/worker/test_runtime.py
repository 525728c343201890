"""Which worker computes a model: with torch or without, and what the one without alone can do."""

from __future__ import annotations

import pytest

from dormouse_worker.common.errors import InvalidSettings
from dormouse_worker.executor.testing import make_settings
from dormouse_worker.executor.worker.runtime import choose_worker
from dormouse_worker.executor.worker.wrapper import BARE_CLASS, WORKER_CLASSES, import_worker
from dormouse_worker.files.model_files import check_model_files

EAGLE = {"speculation_method": "eagle", "speculation_model": "/head"}


@pytest.mark.parametrize("way", [{}, {"worker_cls": BARE_CLASS}])
def test_a_head_is_computed_without_torch(tiny_model, way):
    settings = make_settings(tiny_model, **EAGLE, **way)
    assert choose_worker(settings, {}, check_model_files(tiny_model, "auto")) == BARE_CLASS


@pytest.mark.parametrize("way", [{"engine_runtime": "torch"}, {"enable_lora": True}, {"attention_backend": "sdpa"}])
def test_a_head_is_refused_where_torch_computes_and_what_asks_for_that_is_named(tiny_model, way):
    settings, (name,) = make_settings(tiny_model, **EAGLE, **way), way
    with pytest.raises(InvalidSettings) as refused:
        choose_worker(settings, {}, check_model_files(tiny_model, "auto"))
    assert "speculation_method is eagle" in str(refused.value)
    assert f"{name} asks for it" in str(refused.value)


def test_a_class_of_ones_own_is_asked_whether_it_computes_heads(tiny_model):
    with_torch = WORKER_CLASSES["cpu"]
    settings = make_settings(tiny_model, **EAGLE, worker_cls=with_torch)
    assert choose_worker(settings, {}, check_model_files(tiny_model, "auto")) == with_torch
    with pytest.raises(InvalidSettings, match=rf"worker_cls is '{with_torch}', which computes no heads"):
        import_worker(settings, with_torch, is_quantized=False)
    assert import_worker(settings, BARE_CLASS, is_quantized=False).has_heads
