"""What of the format of response_template is not kept is refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from dormouse_worker.front.answers.response_calls import Unsupported
from dormouse_worker.front.answers.response_template import read_response_template
from tests.worker.front.answers.response_corpus import NAMED


def template(**fields: Any) -> dict[str, Any]:
    return {"start_anchor": "A", "fields": fields}


CALLS = {"open": "<c>", "close": "</c>", "content": "json"}


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ([], "response_template is no object"),
        ({**template(content={}), "version": 2}, "response_template.version is 2"),
        ({**template(content={}), "schema": {}}, "response_template.schema is unknown"),
        (
            {**template(content={}), "defaults": {"role": "assistant", "content": "Hi"}},
            "response_template.defaults.content",
        ),
        ({**template(content={}), "defaults": 1}, "response_template.defaults is no object"),
        ({"fields": {"content": {}}}, "neither start_anchor nor start_anchor_pattern"),
        ({"start_anchor": "A"}, "response_template.fields is no object with members"),
        ({"start_anchor": "A", "fields": {}}, "response_template.fields is no object with members"),
        ({"start_anchor": "A", "fields": ["content"]}, "response_template.fields is no object with members"),
        (
            {**template(content={}), "start_anchor": ""},
            "response_template.start_anchor is no text, nor a list of texts",
        ),
        (template(citations={"open": "<c>"}), "response_template.fields.citations is unknown; fields are content"),
        (template(content=1), "response_template.fields.content is no object"),
        (template(content={"opens": "a"}), "response_template.fields.content.opens is unknown"),
        (template(content={}, thinking={}), "more than one has neither open nor open_pattern"),
        (template(content={"open": ""}), "response_template.fields.content.open is no text"),
        (template(content={"open": 1}), "response_template.fields.content.open is no text"),
        (template(content={"open": []}), "response_template.fields.content.open is no text"),
        (template(content={"open": ["a", 1]}), "response_template.fields.content.open is no text"),
        (template(content={"open": "a", "close": ""}), "response_template.fields.content.close is no text"),
        (template(content={"transform_each": True}), "response_template.fields.content.transform_each: text is told"),
        (
            template(content={"content_args": {"strip": True, "lax": 1}}),
            "response_template.fields.content.content_args.lax is unknown; there are strip",
        ),
        (template(content={"open": "a", "open_pattern": "a"}), "has both open and open_pattern"),
        (template(content={"open_pattern": "("}), "response_template.fields.content.open_pattern is no expression"),
        (template(content={"content": "json"}), "response_template.fields.content.content is 'json'; text is known"),
        (template(content={"transform": "{content}"}), "response_template.fields.content.transform"),
        (template(content={"repeats": True}), "response_template.fields.content.repeats without join"),
        (template(content={"repeats": True, "join": 1}), "response_template.fields.content.join is no string"),
        (template(content={"content_args": {"strip": 1}}), "response_template.fields.content.content_args"),
        (template(tool_calls={"close": "</c>"}), "response_template.fields.tool_calls has neither open nor"),
        (
            template(tool_calls={**CALLS, "content": "yaml"}),
            "response_template.fields.tool_calls.content is 'yaml'; there are json",
        ),
        (template(tool_calls={**CALLS, "content": "text"}), "content is text; of calls it is json"),
        (template(tool_calls={**CALLS, "content_args": {"lax": 1}}), "content_args.lax: json takes"),
        (
            template(tool_calls={**CALLS, "content_args": {"string_delims": [["a"]]}}),
            "string_delims is no list of pairs",
        ),
        (template(tool_calls={**CALLS, "content": "kv-lines", "content_args": {"kv_sep": ""}}), "kv_sep is no text"),
        (template(tool_calls={**CALLS, "content": "xml-inline"}), "tag_pattern is no expression"),
        (
            template(tool_calls={**CALLS, "content": "xml-inline", "content_args": {"tag_pattern": "a"}}),
            "has no group key",
        ),
        (
            template(tool_calls={**CALLS, "content": "kv-lines", "content_args": {"value_parser": 1}}),
            "value_parser is no object",
        ),
        (template(tool_calls={**CALLS, "join": ""}), "join: calls are not joined"),
        (template(tool_calls={**CALLS, "transform": {"call": 1}}), "transform is no function with name and arguments"),
        (
            template(tool_calls={**CALLS, "transform": {**NAMED, "at": 1}}),
            "transform has more than type, function and id",
        ),
        (template(tool_calls={**CALLS, "transform": NAMED}), "transform.name: 'name' is neither content nor a group"),
        (
            template(tool_calls={**CALLS, "transform": {"name": "x", "arguments": "{content}"}}),
            "transform.name is 'x'; it has to be one placeholder",
        ),
        (
            template(tool_calls={**CALLS, "content": "kv-lines", "transform_each": True}),
            "transform_each is of content json",
        ),
    ],
)
def test_what_of_the_format_is_not_kept_is_refused_by_name(spec: Any, words: str):
    with pytest.raises(Unsupported) as refused:
        read_response_template(spec)
    assert words in str(refused.value)
