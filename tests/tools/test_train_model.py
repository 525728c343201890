"""The recipe of the small model; the training itself runs in `make model`."""

from __future__ import annotations

import random
import shlex
import textwrap
from pathlib import Path

import jinja2
import pytest

from tools.train_model import CHAT_TEMPLATE, Recipe, documented, learning_rate_factor, training_texts


def test_another_recipe_is_another_model():
    assert Recipe().digest() == Recipe().digest()
    assert Recipe().digest() != Recipe(seed=21).digest()


def test_the_data_is_the_same_for_the_same_seed():
    sources = [Path(module.__file__).read_text("utf-8") for module in (shlex, textwrap)]
    texts = training_texts(sources, random.Random(1))
    assert texts == training_texts(sources, random.Random(1))
    assert texts != training_texts(sources, random.Random(2))
    assert any(text.startswith("<|user|>") and "dedent" in text for text in texts)


def test_documented_names_become_questions_and_answers():
    public = 'def nap(hours):\n    """Sleep for a number of hours, deeply.\n\n    More."""\n'
    private = 'def _own():\n    """Hidden, and long enough to count otherwise."""\n'
    source = public + private
    assert list(documented(source)) == [("nap", "Sleep for a number of hours, deeply.", public.strip())]
    assert list(documented("not python")) == []


@pytest.mark.parametrize(("step", "factor"), [(0, 0.2), (10, 1.0), (50, 1.0), (80, 0.5), (100, 0.0)])
def test_the_learning_rate_rises_stays_and_falls(step, factor):
    assert learning_rate_factor(step, 100) == pytest.approx(factor)


def test_the_chat_template_marks_each_turn():
    rendered = jinja2.Template(CHAT_TEMPLATE).render(
        bos_token="<s>", eos_token="</s>", messages=[{"role": "user", "content": " hi "}], add_generation_prompt=True
    )
    assert rendered == "<s><|user|>hi</s><|assistant|>"
