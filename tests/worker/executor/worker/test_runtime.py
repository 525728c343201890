"""Which worker computes a model: with torch or without, and what the one without alone can do."""

from __future__ import annotations

import pytest

from dormouse_worker.common.errors import InvalidSettings
from dormouse_worker.executor.testing import make_settings
from dormouse_worker.executor.worker.runtime import choose_worker
from dormouse_worker.executor.worker.wrapper import BARE_CLASS
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
