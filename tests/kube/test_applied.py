"""What is applied is read as YAML, whatever is in it."""

from __future__ import annotations

import yaml
from hypothesis import given
from hypothesis import strategies as st

from dormouse_kube.applied import as_yaml

texts = st.text(st.characters(exclude_categories=["Cs"]))


@given(st.dictionaries(texts, texts | st.integers() | st.lists(texts)))
def test_every_text_is_read_as_it_was(obj):
    assert yaml.safe_load(as_yaml(obj)) == obj


def test_a_character_beyond_the_first_plane_is_not_escaped():
    assert as_yaml({"a": "\U0001f600"}) == '{"a": "\U0001f600"}'
