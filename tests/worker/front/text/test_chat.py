"""Chat templates in the styles that models use: what the front renders equals transformers' apply_chat_template."""

# ruff: noqa: E501  templates are as long as their authors wrote them
from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest
from google.protobuf import json_format
from transformers import PreTrainedTokenizerFast

from dormouse_api.v1 import inference_pb2 as pb
from dormouse_worker.front.testing import write_model
from dormouse_worker.front.text.chat import (
    ChatTemplates,
    TemplateRefused,
    check_templates,
    choose,
)
from dormouse_worker.front.text.chat_arguments import chat_arguments, message_dict
from dormouse_worker.front.text.plain import plain_dict
from dormouse_worker.front.text.special_tokens import special_tokens

TEMPLATES = {
    "chatml": """{% for message in messages %}
{%- if loop.first and message['role'] != 'system' %}<|im_start|>system
You are kind.<|im_end|>
{% endif %}<|im_start|>{{ message['role'] }}
{{ message['content'] }}<|im_end|>
{% endfor %}
{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}""",
    "llama3": """{%- if messages[0]['role'] == 'system' -%}
    {%- set system = messages[0]['content'] | trim -%}
    {%- set rest = messages[1:] -%}
{%- else -%}
    {%- set system = '' -%}
    {%- set rest = messages -%}
{%- endif -%}
{{- bos_token + '<|start_header_id|>system<|end_header_id|>\n\n' }}
{%- if not date_string is defined %}{% set date_string = '26 Jul 2024' %}{% endif %}
{{- 'Today is ' ~ date_string ~ '\n' + system + '<|eot_id|>' }}
{%- if tools is not none %}
    {{- 'Functions:\n' }}
    {%- for tool in tools %}{{- tool | tojson(indent=4) }}{{- '\n' }}{% endfor %}
{%- endif %}
{%- for message in rest %}
    {%- if 'tool_calls' in message %}
        {%- if message.tool_calls | length != 1 %}{{- raise_exception('one call only') }}{% endif %}
        {%- set call = message.tool_calls[0].function %}
        {{- '<|python_tag|>{"name": "' + call.name + '", "parameters": ' + (call.arguments | tojson) + '}' }}
    {%- else %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' + message['content'] | trim }}
    {%- endif %}
    {{- '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}""",
    "mistral": """{{ bos_token }}{% for message in messages %}
{%- if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}
{%- elif message['role'] == 'system' %}{{ '[INST] ' + message['content'] + '\\n\\n' }}
{%- elif message['role'] == 'assistant' %}{{ message['content'] + eos_token }}
{%- elif message['role'] == 'tool' %}{{ '[TOOL_RESULTS] ' ~ {'content': message.content} | tojson }}
{%- else %}{{ raise_exception('unknown role ' + message['role']) }}{% endif %}{% endfor %}""",
    "gemma": """{{ bos_token }}{% if messages[0]['role'] == 'system' %}{% set ns = namespace(first=messages[0].content) %}
{%- set messages = messages[1:] %}{% else %}{% set ns = namespace(first='') %}{% endif %}
{%- for message in messages %}
{%- set role = 'model' if message['role'] == 'assistant' else message['role'] %}
{{ '<start_of_turn>' + role + '\n' + ns.first + (message['content'] | trim) + '<end_of_turn>\n' }}
{%- set ns.first = '' %}{% endfor %}{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}""",
    "phi": """{% for message in messages %}{% if message['role'] == 'system' and message['content'] %}{{'<|system|>
' + message['content'] + '<|end|>
'}}{% elif message['role'] != 'system' %}{{ '<|' + message['role'] + '|>
' + message['content'] + '<|end|>
' }}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>
' }}{% else %}{{ eos_token }}{% endif %}""",
    "zephyr": """{% for message in messages %}
{% if message['role'] == 'user' %}
{{ '<|user|>\n' + message['content'] + eos_token }}
{% elif message['role'] == 'assistant' %}
{% generation %}
{{ '<|assistant|>\n' + message['content'] + eos_token }}
{% endgeneration %}
{% else %}
{{ '<|' ~ message.role ~ '|>\n' ~ message.content ~ eos_token }}
{% endif %}
{% if loop.last and add_generation_prompt %}
{{ '<|assistant|>' }}
{% endif %}
{% endfor %}""",
    "command-r": """{{ bos_token }}{% set ns = namespace(system='You are Command.', count=0) %}
{%- for m in messages if m.role == 'system' %}{% set ns.system = m.content %}{% endfor %}
{{- '<|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|>' ~ ns.system }}
{%- if tools %}{% for tool in tools %}
{{ loop.index }}. def {{ tool.function.name }}({% for name, field in tool.function.parameters.properties.items() -%}
{{ name }}: {{ field.type | upper }}{{ ', ' if not loop.last }}{% endfor %}) -> {{ tool.function.description | replace('"', "'") }}
{%- endfor %}{% endif %}{{ '<|END_OF_TURN_TOKEN|>' }}
{%- for m in messages %}{% if m.role == 'system' %}{% continue %}{% endif %}{% set ns.count = ns.count + 1 %}
{{- '<|START_OF_TURN_TOKEN|><|' + ('CHATBOT' if m.role == 'assistant' else m.role | upper) + '_TOKEN|>' + m.content }}
{%- if ns.count >= 50 %}{% break %}{% endif %}{% endfor %}{{ ns.count }}""",
    "deepseek": """{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}
{%- set ns = namespace(is_first=false, system_prompt='') %}
{%- for message in messages %}{%- if message['role'] == 'system' %}{%- set ns.system_prompt = message['content'] %}{%- endif %}{%- endfor %}
{{- bos_token }}{{ ns.system_prompt }}
{%- for message in messages %}
{%- if message['role'] == 'user' %}{{ '<｜User｜>' + message['content'] }}{%- endif %}
{%- if message['role'] == 'assistant' %}{% set content = message['content'] %}
{%- if '</think>' in content %}{% set content = content.split('</think>')[-1] %}{% endif %}
{{- '<｜Assistant｜>' + content + '<｜end▁of▁sentence｜>' }}{%- endif %}{%- endfor %}
{%- if add_generation_prompt %}{{ '<｜Assistant｜>' }}{% endif %}""",
    "qwen with tools": """{%- if tools %}
{{- '<|im_start|>system\\n' }}{% if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{% endif %}
{{- "# Tools\\n<tools>" }}{% for tool in tools %}{{- "\\n" }}{{- tool | tojson }}{% endfor %}{{- "\\n</tools><|im_end|>\\n" }}
{%- elif messages[0].role == 'system' %}{{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}{% endif %}
{%- for message in messages[::-1] %}{% set last = messages[-1] %}{% endfor %}
{%- for message in messages %}
{%- if message.role in ['user', 'assistant'] %}{{- '<|im_start|>' + message.role }}
{%- if message.content %}{{- '\\n' + message.content }}{% endif %}
{%- for call in message.tool_calls or [] %}{% if call.function %}{% set call = call.function %}{% endif %}
{{- '\\n<tool_call>\\n{"name": "' }}{{- call.name }}{{- '", "arguments": ' }}{{- call.arguments | tojson }}{{- '}\\n</tool_call>' }}
{%- endfor %}{{- '<|im_end|>\\n' }}
{%- elif message.role == "tool" %}{{- '<tool_response>\\n' ~ message.content ~ ' for ' ~ message.tool_call_id }}{% endif %}
{%- endfor %}{% if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{% if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>' }}{% endif %}{% endif %}""",
    "alpaca": """{% macro block(title, text) %}
### {{ title }}:
{{ text }}

{% endmacro %}
{% for m in messages %}{{ block({'user': 'Instruction', 'assistant': 'Response'}.get(m.role, m.role | title), m.content) }}{% endfor %}
{% if add_generation_prompt %}### Response:
{% endif %}""",
    "granite with dict and date": """{{ strftime_now('%Y') | length }}{% set names = dict(user='U', assistant='A') %}
{%- for m in messages %}{{ names.get(m.role, 'S') }}: {{ m.content | string | indent(2) }}
{{ m.name if m.name is defined }}{% endfor %}{{ {'b': 'é<&>', 'a': [1, 2.5, none, true]} | tojson(sort_keys=true, separators=(',', ':')) }}""",
}
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": 'Tell the "weather" <now> & here',
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer", "default": 3}},
            "required": ["city"],
        },
    },
}
USER = {"role": "user", "content": "  What is 2 < 3 & why? \n é✓"}
ANSWER = {"role": "assistant", "content": "<think>hm</think>Because.\nReally."}
CALL = {
    "role": "assistant",
    "content": "",
    "toolCalls": [{"function": {"name": "weather", "arguments": {"city": "Oslo", "n": 2}}}],
}
RESULT = {"role": "tool", "content": "rain", "toolCallId": "call-1"}
CHATS = {
    "one turn": {"messages": [USER]},
    "with system": {"messages": [{"role": "system", "content": "Be brief."}, USER, ANSWER, {**USER, "name": "Ann"}]},
    "no generation prompt": {"messages": [USER, ANSWER], "addGenerationPrompt": False},
    "gone on with": {"messages": [USER, {**ANSWER, "content": "Because."}], "continueFinalMessage": True},
    "gone on with after spaces": {"messages": [USER, {**ANSWER, "content": " It is \n"}], "continueFinalMessage": True},
    "gone on with from nothing": {"messages": [USER, {**ANSWER, "content": ""}], "continueFinalMessage": True},
    "with tools": {"messages": [USER, CALL, RESULT], "tools": [TOOL]},
    "with arguments": {"messages": [USER], "templateArgs": {"enable_thinking": False, "date_string": "today"}},
}
NAMED = {"bos_token": "<s>", "eos_token": "</s>"}


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """The tokenizer as transformers loads it."""
    return PreTrainedTokenizerFast.from_pretrained(write_model(tmp_path_factory.mktemp("model")))


def chat_of(fields):
    return json_format.ParseDict(fields, pb.Chat())


def templates_of(source):
    sources = source if isinstance(source, dict) else {"default": source}
    check_templates(sources)
    return ChatTemplates(sources, NAMED, now=lambda: datetime(2024, 5, 6, tzinfo=UTC), max_chars=10_000)


def render_chat(templates, chat):
    return templates.render(**chat_arguments(chat))


def reference_text(reference, source, chat):
    return reference.apply_chat_template(
        [message_dict(message) for message in chat.messages],
        tools=[plain_dict(tool) for tool in chat.tools] or None,
        chat_template=source,
        tokenize=False,
        add_generation_prompt=chat_arguments(chat)["add_generation_prompt"],
        continue_final_message=chat.continue_final_message,
        **plain_dict(chat.template_args),
    )


@pytest.mark.parametrize("source", ["{{ messages[0].content }}", TEMPLATES["deepseek"]])
def test_a_template_that_leaves_something_of_the_final_message_out_is_a_bad_request(reference, source):
    chat = chat_of({"messages": [USER, ANSWER], "continueFinalMessage": True})
    with pytest.raises(TemplateRefused, match="leaves something of the final message out"):
        render_chat(templates_of(source), chat)
    with pytest.raises(ValueError, match="does not appear in the chat"):
        reference_text(reference, source, chat)


@pytest.mark.parametrize("chat", CHATS)
@pytest.mark.parametrize("style", TEMPLATES)
def test_the_front_renders_what_transformers_renders(reference, style, chat):
    chat = chat_of(CHATS[chat])
    rendered = render_chat(templates_of(TEMPLATES[style]), chat)
    assert rendered == reference_text(reference, TEMPLATES[style], chat)
    assert rendered.strip()


def test_the_special_tokens_are_those_that_transformers_gives_a_template(tmp_path):
    config = {
        "bos_token": {"__type": "AddedToken", "content": "<s>", "lstrip": False},
        "eos_token": "</s>",
        "extra_special_tokens": {"image_token": "<|user|>"},
        "turn_token": "<|assistant|>",
        "add_bos_token": True,
    }
    write_model(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    loaded = PreTrainedTokenizerFast.from_pretrained(tmp_path)
    assert special_tokens(config, {}) == loaded.special_tokens_map


def test_tools_choose_the_template_made_for_them():
    templates = templates_of({"default": "plain", "tool_use": "tools {{ tools | length }}"})
    assert render_chat(templates, chat_of({"messages": [USER]})) == "plain"
    assert render_chat(templates, chat_of({"messages": [USER], "tools": [TOOL]})) == "tools 1"


REFUSED = {
    "own words": ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
    "undefined call": ("{{ nothing() }}", "nothing"),
    "type error": ("{{ 1 + 'a' }}", "TypeError"),
    "sandbox": ("{{ ''.__class__.__mro__ }}", "unsafe"),
    "namespace": ("{% set ns = namespace(_x=1) %}", "underscore"),
    "immutable": ("{{ messages.append(1) }}", "append"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_template_that_fails_is_a_bad_request_with_its_words(case):
    source, words = REFUSED[case]
    with pytest.raises(TemplateRefused) as caught:
        render_chat(templates_of(source), chat_of({"messages": [USER]}))
    assert words in str(caught.value)


def test_a_model_without_template_says_what_to_use_instead():
    with pytest.raises(TemplateRefused, match="text or token_ids"):
        choose((), with_tools=True)


def test_a_model_without_default_template_names_the_others():
    with pytest.raises(TemplateRefused, match="rag"):
        choose(("rag",), with_tools=False)


def test_a_text_that_is_too_long_is_refused_while_it_is_made():
    with pytest.raises(TemplateRefused, match="more than 10000 characters"):
        render_chat(templates_of("{% for i in range(99999) %}ab{% endfor %}"), chat_of({"messages": [USER]}))


def test_a_broken_template_is_told_at_start_with_its_line():
    with pytest.raises(TemplateRefused, match="line 2"):
        templates_of("fine\n{% if %}")


def test_keys_of_a_struct_come_in_the_same_order_whatever_their_order_on_the_wire():
    backwards = dict(reversed(TOOL["function"].items()))
    tool = chat_of({"messages": [USER], "tools": [{"function": backwards, "type": "function"}]}).tools[0]
    assert json.dumps(plain_dict(tool)) == json.dumps(TOOL)


def test_whole_numbers_of_a_struct_are_integers_and_others_are_not():
    args = chat_of({"messages": [USER], "templateArgs": {"a": 3, "b": 2.5, "c": None, "d": [True]}}).template_args
    assert json.dumps(plain_dict(args)) == '{"a": 3, "b": 2.5, "c": null, "d": [true]}'


@pytest.mark.parametrize("name", ["messages", "tools", "add_generation_prompt"])
async def test_arguments_can_not_replace_the_templates_own_variables(house, name):
    chat = chat_of({"messages": [USER], "templateArgs": {name: 1}})
    refused = await house.refusal(house.inference.Tokenize(pb.TokenizeRequest(chat=chat)))
    assert name in refused.details()
