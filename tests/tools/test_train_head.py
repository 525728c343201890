"""Which head a model has; how one guesses is compared in `tests/worker/executor/test_draft_heads.py`."""

from __future__ import annotations

from pathlib import Path

from tools.train_head import Recipe, head_dir


def test_another_recipe_or_another_model_is_another_head():
    model = Path("/models/one")
    assert head_dir(Recipe(), model) == head_dir(Recipe(), model)
    others = head_dir(Recipe(steps=3), model), head_dir(Recipe(), Path("/models/two"))
    assert len({head_dir(Recipe(), model), *others}) == 3
