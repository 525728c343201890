"""Which worker computes a model: with torch or without, and which ones compute heads."""

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


@pytest.mark.parametrize("way", [{"engine_runtime": "torch"}, {"model_impl": "transformers"}])
def test_and_with_torch_where_that_computes_its_model(tiny_model, way):
    settings = make_settings(tiny_model, **EAGLE, **way)
    assert choose_worker(settings, {}, check_model_files(tiny_model, "auto")) == WORKER_CLASSES["cpu"]


def test_a_class_is_asked_whether_it_computes_heads_and_gpus_do_not(tiny_model):
    settings, on_gpu = make_settings(tiny_model, **EAGLE), WORKER_CLASSES["cuda"]
    with pytest.raises(InvalidSettings, match=rf"the worker's class is '{on_gpu}', which computes no such heads"):
        import_worker(settings, on_gpu, is_quantized=False)
    for with_heads in (BARE_CLASS, WORKER_CLASSES["cpu"]):
        assert "eagle" in import_worker(settings, with_heads, is_quantized=False).heads


def test_a_checkpoints_own_head_is_computed_with_torch_alone(tiny_model):
    settings = make_settings(tiny_model, speculation_method="mtp")
    assert choose_worker(settings, {}, check_model_files(tiny_model, "auto")) == WORKER_CLASSES["cpu"]
    with pytest.raises(InvalidSettings, match=rf"speculation_method is mtp, and the worker's class is '{BARE_CLASS}'"):
        import_worker(settings, BARE_CLASS, is_quantized=False)
