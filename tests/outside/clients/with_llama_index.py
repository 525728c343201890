"""LlamaIndex's OpenAILike."""

from __future__ import annotations

import asyncio
from typing import Any

from asking import QUESTION, Answer, tell
from llama_index.core.llms import ChatMessage
from llama_index.llms.openai_like import OpenAILike


class LlamaIndex:
    """A language model of LlamaIndex."""

    def __init__(self, address: str, key: str, model: str) -> None:
        """Take where and what to ask."""
        self._where: dict[str, Any] = {"api_base": address, "api_key": key, "model": model, "max_retries": 0}
        self._messages = [ChatMessage(role="user", content=QUESTION)]

    def answer(self, **sampling: Any) -> Answer:
        """Return an answer in one piece."""
        got = self._model(**sampling).chat(self._messages)
        usage = (got.raw.usage.prompt_tokens, got.raw.usage.completion_tokens)
        return Answer(got.message.content, got.raw.choices[0].finish_reason, usage)

    def stream(self, **sampling: Any) -> Answer:
        """Return a streamed answer."""
        parts = list(self._model(**sampling).stream_chat(self._messages))
        finish = [part.raw.choices[0].finish_reason for part in parts if part.raw.choices]
        return Answer(parts[-1].message.content, finish[-1])

    def models(self) -> None:
        """Have no such call."""

    def leave(self, **sampling: Any) -> None:
        """Cancel the task that reads: who closes the generator keeps the connection until Python collects garbage."""
        asyncio.run(self._leave(sampling))

    async def _leave(self, sampling: dict[str, Any]) -> None:
        began = asyncio.Event()
        reading = asyncio.create_task(self._read(began, sampling))
        await began.wait()
        reading.cancel()
        await asyncio.wait({reading})

    async def _read(self, began: asyncio.Event, sampling: dict[str, Any]) -> None:
        model = self._model(additional_kwargs={"extra_body": {"ignore_eos": True}}, **sampling)
        async for part in await model.astream_chat(self._messages):
            if part.delta:
                began.set()

    def _model(self, max_tokens: int = 8, additional_kwargs: dict[str, Any] | None = None, **further: Any) -> Any:
        return OpenAILike(
            **self._where,
            is_chat_model=True,
            temperature=0,
            max_tokens=max_tokens,
            additional_kwargs=(additional_kwargs or {}) | further,
        )


if __name__ == "__main__":
    tell(LlamaIndex)
