"""What bodies of chat and completions may say: the one table, as JSON Schema. Served in the OpenAPI document as it is.

Names and meanings are OpenAI's; the fields of `VLLM` are vLLM's. A field that is not here is refused by its name, for
the reason that `refused` gives, if it has one.
"""

from __future__ import annotations

from collections.abc import Mapping

from dormouse_api.limits import (
    MAX_ALLOWED_TOKEN_IDS,
    MAX_BAD_WORD_BYTES,
    MAX_BAD_WORDS,
    MAX_CHAT_MESSAGES,
    MAX_CHOICES,
    MAX_LOGIT_BIAS,
    MAX_LOGIT_BIASES,
    MAX_LOGPROB_TOKEN_IDS,
    MAX_LOGPROBS,
    MAX_MESSAGE_BYTES,
    MAX_PENALTY,
    MAX_PRIORITY,
    MAX_REPETITION_PENALTY,
    MAX_STOP_STRING_BYTES,
    MAX_STOP_STRINGS,
    MAX_STOP_TOKEN_IDS,
    MAX_TOOLS,
)
from dormouse_gateway.clients.requests import MAX_MODEL_CHARS
from dormouse_gateway.openai.pictures import CHAT_IMAGE, CHAT_SOUND, CHAT_SOUND_URL, CHAT_VIDEO
from dormouse_gateway.openai.schema_kit import (
    BOOLEAN,
    FREE,
    MAX_NAME_CHARS,
    Json,
    above_0,
    array,
    fields,
    integer,
    kind,
    number,
    one_of,
    only,
    or_null,
    request,
    text,
    unused,
)
from dormouse_gateway.openai.structured import RESPONSE_FORMAT, STRUCTURED_OUTPUTS
from dormouse_gateway.openai.tools import TOOL_CHOICE

MAX_TOKENS = (1 << 31) - 1  # the model's length is the real limit, and the worker's to say
DEFAULT_COMPLETION_TOKENS = 16  # OpenAI's, of /v1/completions only
MAX_PROMPTS = 256  # of one body, each of which is a request
_MAX_TOKEN_ID = (1 << 32) - 1
_MAX_TEMPERATURE = 100  # beyond it all tokens are as good as equally likely

TOKEN_ID = integer(0, _MAX_TOKEN_ID)
MODEL = text(1, MAX_MODEL_CHARS) | {"description": "A name of /v1/models, or namespace/name."}
STREAM = BOOLEAN | {"description": "Server-sent events, ended by [DONE]."}
TEMPERATURE = number(0, _MAX_TEMPERATURE) | {"description": "0 = greedy. Default: the model's, else 1."}
TOP_P = above_0(1) | {"description": "The smallest set of tokens with this probability."}
STOP_STRING = text(1, MAX_STOP_STRING_BYTES)
NOT_PADDED = only(False, "Answers are not padded.")  # noqa: FBT003  # a value of the API

_COMMON: Mapping[str, Json] = {
    "stream": STREAM,
    "stream_options": fields({"include_usage": BOOLEAN, "include_obfuscation": NOT_PADDED})
    | {"description": "include_usage: the last event tells it."},
    "temperature": TEMPERATURE,
    "top_p": TOP_P,
    "presence_penalty": number(-MAX_PENALTY, MAX_PENALTY) | {"description": "Off the logits of tokens in the answer."},
    "frequency_penalty": number(-MAX_PENALTY, MAX_PENALTY)
    | {"description": "Off the logits of tokens in the answer, once for each time."},
    "seed": integer(0, (1 << 64) - 1) | {"description": "The same seed and request give the same answer."},
    "n": integer(1, MAX_CHOICES) | {"description": "So many answers."},
    "stop": one_of(
        STOP_STRING,
        array(STOP_STRING, MAX_STOP_STRINGS),
        description=f"At most {MAX_STOP_STRINGS} strings of {MAX_STOP_STRING_BYTES} bytes.",
    ),
    "logit_bias": {
        "type": "object",
        "propertyNames": {"pattern": "^[0-9]{1,9}$"},
        "additionalProperties": number(-MAX_LOGIT_BIAS, MAX_LOGIT_BIAS),
        "maxProperties": MAX_LOGIT_BIASES,
        "description": "By token id.",
    },
    "max_tokens": integer(1, MAX_TOKENS) | {"description": "Default: as many as the model has room for."},
}
HARMLESS: Mapping[str, Json] = {  # what clients send by themselves, and what changes no answer
    "user": unused(text(), "who asks is told by the API key."),
    "safety_identifier": unused(text(0, MAX_NAME_CHARS), "who asks is told by the API key."),
    "prompt_cache_key": unused(text(0, MAX_NAME_CHARS), "equal beginnings are found without it."),
    "prompt_cache_retention": unused({"enum": ["in_memory", "24h"]}, "what is cached stays while there is room."),
    "prompt_cache_options": unused(FREE, "equal beginnings are cached without being asked."),
    "metadata": unused(
        {
            "type": "object",
            "propertyNames": {"pattern": "^.{1,64}$"},
            "additionalProperties": text(0, 512),
            "maxProperties": 16,
        },
        "nothing is stored.",
    ),
    "store": only(False, "Nothing is stored."),  # noqa: FBT003  # a value of the API
    "service_tier": unused({"enum": ["auto", "default"]}, "there is one."),
}
PRIORITY = integer(-MAX_PRIORITY, MAX_PRIORITY) | {"description": "Lower goes first."}
VLLM: Mapping[str, Json] = {
    "top_k": integer(-1, MAX_TOKENS) | {"description": "0 and -1 = all."},
    "min_p": number(0, 1) | {"description": "Relative to the likeliest token."},
    "repetition_penalty": above_0(MAX_REPETITION_PENALTY) | {"description": "Divides the logits of seen tokens."},
    "min_tokens": integer(0, MAX_TOKENS) | {"description": "No end before so many tokens."},
    "ignore_eos": BOOLEAN | {"description": "Go on after the end-of-sequence token."},
    "stop_token_ids": array(TOKEN_ID, MAX_STOP_TOKEN_IDS) | {"description": "Tokens that end the answer."},
    "include_stop_str_in_output": BOOLEAN | {"description": "The stop string is part of the text."},
    "skip_special_tokens": BOOLEAN | {"description": "Default true."},
    "bad_words": array(text(1, MAX_BAD_WORD_BYTES), MAX_BAD_WORDS) | {"description": "Words that are not said."},
    "allowed_token_ids": array(TOKEN_ID, MAX_ALLOWED_TOKEN_IDS, least=1)
    | {"description": "Only these tokens are said."},
    "logprob_token_ids": array(TOKEN_ID, MAX_LOGPROB_TOKEN_IDS)
    | {"description": "With logprobs, these tokens are told of behind the likeliest ones, likely or not."},
    "priority": PRIORITY,
    "prompt_logprobs": integer(0, MAX_LOGPROBS)
    | {"description": "Log-probabilities of the prompt's tokens. Not with stream."},
    "return_token_ids": BOOLEAN | {"description": "Tell the ids of the prompt's and the answer's tokens."},
    "structured_outputs": STRUCTURED_OUTPUTS,
    "response_format": RESPONSE_FORMAT,
}

_TOOL_CALL = fields(
    {
        "id": text(0, MAX_NAME_CHARS),
        "type": only("function", "There are no others."),
        "index": unused(integer(0, MAX_TOKENS), "their order says it."),
        "function": fields(
            {
                "name": text(1, MAX_NAME_CHARS),
                "arguments": text() | {"description": "As text; a JSON object becomes one."},
                "parsed_arguments": unused({}, "openai-python sends back what it made of them."),
            },
            "name",
            "arguments",
        ),
    },
    "function",
)
_PART = kind("text", {"text": text()}, "text")
_TEXT = one_of(
    text(), array(_PART, MAX_CHAT_MESSAGES), description="Text, or parts of it, which are joined by line ends."
)
_CONTENT = one_of(
    text(),
    array(one_of(_PART, CHAT_IMAGE, CHAT_VIDEO, CHAT_SOUND, CHAT_SOUND_URL), MAX_CHAT_MESSAGES),
    description="Text, or parts: of text, which are joined by line ends, images, videos and sounds.",
)
_SAID: Mapping[str, Json] = {
    "role": text(1, 64) | {"description": "As the model's template knows it: system, user, assistant, tool, …"},
    "name": or_null(text(1, MAX_NAME_CHARS)),
    "tool_call_id": or_null(text(0, MAX_NAME_CHARS)),
    "refusal": {"type": "null"},
    "audio": {"type": "null"},
    "function_call": {"type": "null"},
    "annotations": or_null(unused(array(FREE, MAX_CHAT_MESSAGES), "clients send back what an answer had.")),
    "parsed": unused({}, "openai-python sends back what it made of the content."),
    "reasoning_content": or_null(text()) | {"description": "What the assistant thought, for the template."},
    "reasoning": or_null(text()) | {"description": "The same under its other name."},
}
_CALLS = array(_TOOL_CALL, MAX_TOOLS, least=1)
_TURN = fields({**_SAID, "content": _CONTENT, "tool_calls": or_null(_CALLS)}, "role", "content")
_CALLING_TURN = fields({**_SAID, "content": or_null(_CONTENT), "tool_calls": _CALLS}, "role", "tool_calls")
MESSAGES = array(one_of(_TURN, _CALLING_TURN), MAX_CHAT_MESSAGES, least=1)
FUNCTION: Mapping[str, Json] = {
    "name": text(1, MAX_NAME_CHARS),
    "description": or_null(text()),
    "parameters": or_null(FREE) | {"description": "A JSON Schema."},
    "strict": or_null(BOOLEAN) | {"description": "Whether arguments are forced to fit where no call is."},
}
TOOLS = array(
    fields(
        {"type": only("function", "There are no others."), "function": fields(FUNCTION, "name")}, "type", "function"
    ),
    MAX_TOOLS,
) | {"description": "Functions that the model may call. Rendered by its template."}
PARALLEL = BOOLEAN | {"description": "false: one call at most. Default: as many as the model makes."}
EFFORT = text(1, 32) | {"description": "The variable reasoning_effort of the model's template, where it has one."}
TEMPLATE_KWARGS = FREE | {"description": "Further variables of the template (enable_thinking, …)."}
GENERATION_PROMPT = BOOLEAN | {"description": "Default true: the prompt ends where the assistant's turn begins."}
CONTINUE = BOOLEAN | {"description": "The answer continues the final message. Not together with add_generation_prompt."}

PREDICTION = fields({"type": only("content", "There are no others."), "content": _TEXT}, "type", "content") | {
    "description": "The answer as you expect it: what is right comes sooner, where workers have drafts."
}

CHAT_REQUEST = request(
    {"model": MODEL, "messages": MESSAGES | {"description": "The conversation, rendered by the model's template."}},
    {
        **_COMMON,
        **HARMLESS,
        **VLLM,
        "max_completion_tokens": integer(1, MAX_TOKENS) | {"description": "Goes before max_tokens."},
        "logprobs": BOOLEAN | {"description": "Log-probabilities of the answer's tokens."},
        "top_logprobs": integer(0, MAX_LOGPROBS) | {"description": "Only counts with logprobs."},
        "tools": TOOLS,
        "parallel_tool_calls": PARALLEL,
        "modalities": array(only("text", "Answers are text."), 1, least=1) | {"description": '["text"] only.'},
        "tool_choice": TOOL_CHOICE,
        "reasoning_effort": EFFORT,
        "prediction": PREDICTION,
        "verbosity": only("medium", "How much a model says is up to it."),
        "chat_template_kwargs": TEMPLATE_KWARGS,
        "add_generation_prompt": GENERATION_PROMPT,
        "continue_final_message": CONTINUE,
    },
)
COMPLETION_REQUEST = request(
    {
        "model": MODEL,
        "prompt": one_of(
            text(1),
            array(text(1), MAX_PROMPTS, least=1),
            array(TOKEN_ID, MAX_MESSAGE_BYTES, least=1),
            array(array(TOKEN_ID, MAX_MESSAGE_BYTES, least=1), MAX_PROMPTS, least=1),
            description=f"One text or its token ids, or a list of either: at most {MAX_PROMPTS} answers together.",
        ),
    },
    {
        **_COMMON,
        **HARMLESS,
        **VLLM,
        "max_tokens": integer(0, MAX_TOKENS)
        | {"description": f"Default {DEFAULT_COMPLETION_TOKENS}. 0 only with echo: the prompt is told, no more."},
        "logprobs": integer(0, MAX_LOGPROBS) | {"description": "So many likeliest tokens besides the chosen one."},
        "echo": BOOLEAN
        | {"description": "The prompt stands before the answer. Not with stream; with logprobs for one choice."},
        "best_of": only(1, "Answers are not ranked."),
        "suffix": only("", "Models write on, they fill no gaps."),
        "add_special_tokens": only(True, "Send token ids to leave them out."),  # noqa: FBT003  # a value of the API
    },
)
