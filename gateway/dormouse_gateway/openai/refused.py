"""What is not done, by its name: which parameters clients know that this API refuses, and what to do instead.

Any other unknown name is refused as well; these have a reason.
"""

from __future__ import annotations

from collections.abc import Mapping

_INSTEAD = "use structured_outputs"
_NO_TOOLS_OF_OURS = "the gateway has no tools of its own"
_NOT_MODERATED = "answers are not moderated"

_VLLM: Mapping[str, str] = {
    "guided_json": f"{_INSTEAD}.json",
    "guided_regex": f"{_INSTEAD}.regex",
    "guided_choice": f"{_INSTEAD}.choice",
    "guided_grammar": f"{_INSTEAD}.grammar",
    "guided_decoding_backend": "there is one",
    "guided_whitespace_pattern": f"{_INSTEAD}.disable_any_whitespace",
    "structural_tag": f"{_INSTEAD}.structural_tag",
    "use_beam_search": "answers are sampled, one token after the other",
    "length_penalty": "there is no beam search",
    "truncate_prompt_tokens": "a prompt is used whole, or refused",
    "cache_salt": "who shares cached beginnings is decided by the API key",
    "request_id": "send it as the header x-request-id",
    "return_tokens_as_token_ids": "use return_token_ids",
    "spaces_between_special_tokens": "text is what the tokenizer makes of the tokens",
    "logits_processors": "code of clients is not run",
    "kv_transfer_params": "cached blocks do not travel between workers by request",
}
CHAT: Mapping[str, str] = {
    **_VLLM,
    "audio": "answers are text",
    "function_call": "use tool_choice",
    "functions": "use tools",
    "moderation": _NOT_MODERATED,
    "web_search_options": _NO_TOOLS_OF_OURS,
    "echo": "/v1/completions has it",
    "chat_template": "a model's own template is used",
    "documents": "put them into a message",
    "mm_processor_kwargs": "images, videos and sounds are processed as the model's files say",
    "add_special_tokens": "a model's template brings its own",
}
TOKENIZE: Mapping[str, str] = {
    name: CHAT[name] for name in ("chat_template", "documents", "mm_processor_kwargs", "cache_salt")
}
COMPLETION: Mapping[str, str] = {**_VLLM, "prompt_embeds": "a prompt is text or token ids"}
RERANK: Mapping[str, str] = {
    "rank_fields": "documents are texts, or objects with text alone",
    "max_chunks_per_doc": "a document is read in one pass; use max_tokens_per_doc",
}
_TEXT_ONLY = "questions are about text"
SYSTEMONE: Mapping[str, str] = {
    **dict.fromkeys(("images", "audio", "videos"), _TEXT_ONLY),
    "cache_salt": "use prompt_cache_key; who shares cached beginnings at most is decided by the API key",
    "request_id": _VLLM["request_id"],
}
RESPONSES: Mapping[str, str] = {
    "previous_response_id": "nothing is stored: send the whole conversation as input",
    "conversation": "nothing is stored: send the whole conversation as input",
    "prompt": "nothing is stored: send the prompt as input",
    "background_options": "nothing runs in the background",
    "access_programs": "there are none",
    "context_management": "the conversation is used as it is sent",
    "image": "answers are text",
    "max_tool_calls": _NO_TOOLS_OF_OURS,
    "moderation": _NOT_MODERATED,
}
MESSAGES: Mapping[str, str] = {
    "container": "there are none",
    "mcp_servers": _NO_TOOLS_OF_OURS,
    "diagnostics": "there are none",
    "inference_geo": "requests are answered where the gateway runs",
    "fallbacks": "name one model",
    "fallback_credit_token": "name one model",
    "compaction": "the conversation is used as it is sent",
    "billing_policy": "nothing is billed",
    "thread": "nothing is stored: send the whole conversation",
    "output_format": "use output_config.format",
}
