"""OpenAI's own library for Python."""

from __future__ import annotations

from typing import Any

import openai
from asking import QUESTION, Answer, tell


class OpenAI:
    """Its blocking client."""

    def __init__(self, address: str, key: str, model: str) -> None:
        """Take where and what to ask."""
        self._client = openai.OpenAI(base_url=address, api_key=key, max_retries=0)
        self._asked: dict[str, Any] = {"model": model, "messages": [{"role": "user", "content": QUESTION}]}

    def answer(self, **sampling: Any) -> Answer:
        """Return an answer in one piece."""
        got = self._client.chat.completions.create(**self._asked, temperature=0, logprobs=True, **sampling)
        (choice,) = got.choices
        logprobs = [token.logprob for token in choice.logprobs.content]
        usage = (got.usage.prompt_tokens, got.usage.completion_tokens)
        return Answer(choice.message.content, choice.finish_reason, usage, logprobs)

    def stream(self, **sampling: Any) -> Answer:
        """Return a streamed answer."""
        how = {"temperature": 0, "logprobs": True, "stream": True, "stream_options": {"include_usage": True}}
        chunks = list(self._client.chat.completions.create(**self._asked, **how, **sampling))
        choices = [choice for chunk in chunks for choice in chunk.choices]
        texts = [choice.delta.content for choice in choices if choice.delta.content]
        logprobs = [token.logprob for choice in choices if choice.logprobs for token in choice.logprobs.content]
        usage = (chunks[-1].usage.prompt_tokens, chunks[-1].usage.completion_tokens)
        return Answer("".join(texts), choices[-1].finish_reason, usage, logprobs)

    def models(self) -> list[str]:
        """Return the models' names."""
        return [model.id for model in self._client.models.list()]

    def leave(self, **sampling: Any) -> None:
        """Leave the stream's block."""
        with self._client.chat.completions.create(
            **self._asked, stream=True, extra_body={"ignore_eos": True}, **sampling
        ) as stream:
            next(chunk for chunk in stream if chunk.choices[0].delta.content)


if __name__ == "__main__":
    tell(OpenAI)
