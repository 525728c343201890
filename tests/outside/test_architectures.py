"""Every causal language model that transformers knows: our tokens are its own, or the worker says by name why not."""

from __future__ import annotations

import pytest

from tests.outside.architectures import NAMES, sweep

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.filterwarnings("ignore")]


@pytest.mark.parametrize("name", NAMES)
def test_an_architecture_is_served_as_transformers_computes_it_or_refused_by_name(name, seed, record_property):
    ending = sweep(name, seed)
    record_property("ending", ending.verdict)
    if ending.verdict == "not built":
        pytest.skip(f"no tiny model of it can be made here: {ending.words}")
    assert ending.verdict in {"equal", "refused"}, str(ending)
    record_property("words", ending.words)
