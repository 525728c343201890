"""The model's chat template says which family it is of, unless the settings do."""

from __future__ import annotations

import pytest

from dormouse_worker.common.errors import InvalidSettings
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.front.answers.detection import families_of


def found(template, **said):
    return families_of(template, EngineSettings(model="m", **said))


@pytest.mark.parametrize(
    ("template", "families"),
    [
        ("{{ messages }}", ("", "")),
        ('<tool_call>\n{"name": <function-name>}', ("hermes", "")),
        ("<tool_call>{{ call }}</tool_call> <think>", ("hermes", "think")),
        ("{{ content.split('</think>')[-1] }}", ("", "think")),
        ("[AVAILABLE_TOOLS] [TOOL_CALLS]", ("mistral", "")),
        ("[TOOL_CALLS] [THINK]", ("mistral", "mistral")),
        ('<|start_header_id|> {"name": f, "parameters": {}}', ("llama3_json", "")),
        ("<|python_start|>[f(a=1)]<|python_end|>", ("pythonic", "")),
        ("<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n", ("deepseek_v3", "")),
        ("<｜tool▁call▁begin｜>f<｜tool▁sep｜>", ("deepseek_v31", "")),
        ("<|tool_call|> Here is my thought process:", ("granite", "granite")),
        ("<tool_call>f<arg_key> <think>", ("glm45", "think")),
        ("<tool_call><function=f><parameter=a>", ("qwen3_coder", "")),
        ("<|start|>assistant<|channel|>analysis", ("openai", "openai")),
    ],
)
def test_a_template_is_of_the_family_whose_markers_it_writes(template, families):
    assert found(template) == families


def test_what_the_settings_say_goes_before_the_template():
    template = "<tool_call> <think>"
    assert found(template, tool_call_parser="none") == ("", "think")
    assert found(template, tool_call_parser="pythonic", reasoning_parser="none") == ("pythonic", "")


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"tool_call_parser": "hermse"}, ["--tool-call-parser is 'hermse'; it is one of auto, none, ", "hermes, "]),
        ({"reasoning_parser": "hermes"}, ["--reasoning-parser is 'hermes'; it is one of auto, none, ", "think, "]),
        (
            {"tool_call_parser": "response_template"},
            ["--tool-call-parser is 'response_template'; ", ", or install the"],
        ),
        ({"reasoning_parser": "response_template"}, ["--reasoning-parser is 'response_template'; "]),
    ],
)
def test_a_family_that_nobody_knows_is_refused_with_those_that_are_known(said, words):
    with pytest.raises(InvalidSettings) as refused:
        found("{{ messages }}", **said)
    assert all(word in str(refused.value) for word in words)
