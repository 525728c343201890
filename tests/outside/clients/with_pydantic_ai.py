"""Pydantic AI's agents."""

from __future__ import annotations

import asyncio
from typing import Any

import openai
from asking import QUESTION, Answer, tell
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider


class PydanticAI:
    """An agent without tools."""

    def __init__(self, address: str, key: str, model: str) -> None:
        """Take where and what to ask."""
        self._where = {"base_url": address, "api_key": key, "max_retries": 0}
        self._model = model

    def answer(self, **sampling: Any) -> Answer:
        """Return an answer in one piece."""
        return asyncio.run(self._answer(sampling))

    def stream(self, **sampling: Any) -> Answer:
        """Return a streamed answer."""
        return asyncio.run(self._stream(sampling))

    def models(self) -> None:
        """Have no such call."""

    def leave(self, **sampling: Any) -> None:
        """Leave the stream's block."""
        asyncio.run(self._leave({**sampling, "extra_body": {"ignore_eos": True}}))

    async def _answer(self, sampling: dict[str, Any]) -> Answer:
        got = await self._agent().run(QUESTION, model_settings=_settings(sampling))
        usage = got.usage
        finish = got.response.provider_details["finish_reason"]
        return Answer(got.output, finish, (usage.input_tokens, usage.output_tokens))

    async def _stream(self, sampling: dict[str, Any]) -> Answer:
        async with self._agent().run_stream(QUESTION, model_settings=_settings(sampling)) as got:
            texts = [text async for text in got.stream_text(delta=True, debounce_by=None)]
            finish = got.response.provider_details["finish_reason"]
            usage = got.usage
        return Answer("".join(texts), finish, (usage.input_tokens, usage.output_tokens))

    async def _leave(self, sampling: dict[str, Any]) -> None:
        async with self._agent().run_stream(QUESTION, model_settings=_settings(sampling)) as got:
            await anext(got.stream_text(delta=True, debounce_by=None))

    def _agent(self) -> Any:
        provider = OpenAIProvider(openai_client=openai.AsyncOpenAI(**self._where))
        return Agent(OpenAIChatModel(self._model, provider=provider))


def _settings(sampling: dict[str, Any]) -> dict[str, Any]:
    named = {"stop_sequences": sampling.pop("stop")} if "stop" in sampling else {}
    return {"temperature": 0, **sampling, **named}


if __name__ == "__main__":
    tell(PydanticAI)
