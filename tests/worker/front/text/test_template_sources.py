"""Where a model's chat templates are read from, and that it is seen without computing anything whether they are any."""

from __future__ import annotations

import pytest

from dormouse_worker.front.text.chat import (
    TemplateRefused,
    check_templates,
    read_template_sources,
)

CONSTANTS = {
    "output": "{{ 'a'|center(10**12) }}",
    "a condition": "{% if ('a' * 10**12)|length %}{% endif %}",
    "a loop": "{% for x in 'a'|center(10**12) %}{% endfor %}",
    "an assignment": "{% set x = 'a'|center(10**12) %}",
    "a power": "{{ 9**(9**9) }}",
    "a default": "{% macro m(x='a'|center(10**12)) %}{% endmacro %}",
}


@pytest.mark.parametrize("where", CONSTANTS)
def test_to_see_whether_it_is_a_template_nothing_of_it_is_computed(where):
    check_templates({"default": CONSTANTS[where]})


@pytest.mark.parametrize("source", ["{{ x | nothing }}", "{% nothing %}", "{{ x is nothing }}", "{{ (" * 999])
def test_what_is_no_template_is_seen_without_computing_it(source):
    with pytest.raises(TemplateRefused, match=r"broken in line 1|nested too deep"):
        check_templates({"default": source})


def test_templates_are_read_from_each_place_that_models_use(tmp_path):
    named = [{"name": "default", "template": "a"}, {"name": "tool_use", "template": "b"}]
    assert read_template_sources(tmp_path, {}) == {}
    assert read_template_sources(tmp_path, {"chat_template": "x"}) == {"default": "x"}
    assert read_template_sources(tmp_path, {"chat_template": named}) == {"default": "a", "tool_use": "b"}
    (tmp_path / "chat_template.jinja").write_text("file")
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "tool_use.jinja").write_text("tools")
    assert read_template_sources(tmp_path, {"chat_template": "x"}) == {"default": "file", "tool_use": "tools"}
