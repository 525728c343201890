"""LiteLLM, as a client of a server that speaks OpenAI's API."""

from __future__ import annotations

from typing import Any

import litellm
from asking import QUESTION, Answer, tell

litellm.suppress_debug_info = True


class LiteLLM:
    """Its blocking function."""

    def __init__(self, address: str, key: str, model: str) -> None:
        """Take where and what to ask."""
        self._address, self._key = address, key
        self._asked: dict[str, Any] = {
            "model": f"openai/{model}",
            "api_base": address,
            "api_key": key,
            "messages": [{"role": "user", "content": QUESTION}],
            "max_retries": 0,
        }

    def answer(self, **sampling: Any) -> Answer:
        """Return an answer in one piece."""
        got = litellm.completion(**self._asked, temperature=0, logprobs=True, **sampling)
        (choice,) = got.choices
        logprobs = [token.logprob for token in choice.logprobs.content]
        usage = (got.usage.prompt_tokens, got.usage.completion_tokens)
        return Answer(choice.message.content, choice.finish_reason, usage, logprobs)

    def stream(self, **sampling: Any) -> Answer:
        """Return a streamed answer."""
        how = {"temperature": 0, "stream": True, "stream_options": {"include_usage": True}}
        chunks = list(litellm.completion(**self._asked, **how, **sampling))
        texts = [text for chunk in chunks if chunk.choices and (text := chunk.choices[0].delta.content)]
        finish = [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices]
        (usage,) = [found for chunk in chunks if (found := getattr(chunk, "usage", None))]
        told = (usage.prompt_tokens, usage.completion_tokens)
        return Answer("".join(texts), next(filter(None, finish)), told)

    def models(self) -> list[str]:
        """Ask the server for its models."""
        return litellm.get_valid_models(
            check_provider_endpoint=True, custom_llm_provider="openai", api_base=self._address, api_key=self._key
        )

    def leave(self, **sampling: Any) -> None:
        """Close the response."""
        stream = litellm.completion(**self._asked, stream=True, extra_body={"ignore_eos": True}, **sampling)
        next(chunk for chunk in stream if chunk.choices[0].delta.content)
        stream.completion_stream.close()


if __name__ == "__main__":
    tell(LiteLLM)
