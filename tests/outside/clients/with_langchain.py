"""LangChain's ChatOpenAI."""

from __future__ import annotations

from typing import Any

from asking import QUESTION, Answer, tell
from langchain_openai import ChatOpenAI


class LangChain:
    """A chat model of LangChain."""

    def __init__(self, address: str, key: str, model: str) -> None:
        """Take where and what to ask."""
        self._where: dict[str, Any] = {"base_url": address, "api_key": key, "model": model, "max_retries": 0}

    def answer(self, **sampling: Any) -> Answer:
        """Return an answer in one piece."""
        got = self._chat(logprobs=True, temperature=0, **sampling).invoke(QUESTION)
        return _answer(got)

    def stream(self, **sampling: Any) -> Answer:
        """Return a streamed answer; LangChain's own chunks add up."""
        chat = self._chat(logprobs=True, temperature=0, stream_usage=True, **sampling)
        chunks = list(chat.stream(QUESTION))
        whole = chunks[0]
        for chunk in chunks[1:]:
            whole += chunk
        return _answer(whole)

    def models(self) -> None:
        """Have no such call."""

    def leave(self, **sampling: Any) -> None:
        """Close the generator."""
        pieces = self._chat(extra_body={"ignore_eos": True}, **sampling).stream(QUESTION)
        next(piece for piece in pieces if piece.text)
        pieces.close()

    def _chat(self, **how: Any) -> ChatOpenAI:
        return ChatOpenAI(**self._where, **how)


def _answer(got: Any) -> Answer:
    told, usage = got.response_metadata, got.usage_metadata
    logprobs = [token["logprob"] for token in told["logprobs"]["content"]]
    return Answer(got.text, told["finish_reason"], (usage["input_tokens"], usage["output_tokens"]), logprobs)


if __name__ == "__main__":
    tell(LangChain)
