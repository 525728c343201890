"""LangChain's ways to a form: a structured output by each of its methods, and tools of which one has to be called."""

from __future__ import annotations

import json
import sys
from typing import Any, Literal

import httpx
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, Field

QUESTION = "Which animal sleeps, and how long?"


class Animal(BaseModel):
    """An animal that sleeps."""

    animal: Literal["dormouse", "hedgehog"]
    weeks: int = Field(ge=0, le=52)
    asleep: bool


@tool(args_schema=Animal)
def look_up(animal: str, weeks: int, asleep: bool) -> str:  # as users of LangChain write tools
    """Look an animal up."""
    return f"{animal} {weeks} {asleep}"


@tool
def wake(loudly: bool) -> str:
    """Wake all animals."""
    return f"woken {loudly}"


def calls_of(message: Any) -> list[list[Any]]:
    """Return a message's calls; those that LangChain could not read are none."""
    assert not message.invalid_tool_calls, message.invalid_tool_calls
    return [[call["name"], call["args"]] for call in message.tool_calls]


def streamed(chat: Any) -> Any:
    """Return a stream's message, its chunks put together."""
    whole, *others = chat.stream(QUESTION)
    for chunk in others:
        whole += chunk
    return whole


def brace(address: str) -> dict[int, int]:
    """Return a bias to the end of an object: where any will do, an untaught model does not come to it."""
    asked = {"model": "tiny", "prompt": "}", "add_special_tokens": False}
    key = {"Authorization": f"Bearer {sys.argv[2]}"}
    told = httpx.post(f"{address.removesuffix('/v1')}/tokenize", json=asked, headers=key).json()
    return {told["tokens"][-1]: 50}


def main() -> None:
    """Ask everything, print what came."""
    address, key = sys.argv[1:3]
    where: dict[str, Any] = {"base_url": address, "api_key": key, "model": "tiny", "max_retries": 0}
    chat = ChatOpenAI(**where, max_tokens=512, temperature=0)
    responses = ChatOpenAI(**where, max_tokens=512, temperature=0, use_responses_api=True, store=False)
    parsed = {
        "json_schema": chat.with_structured_output(Animal, strict=True),
        "function_calling": chat.with_structured_output(Animal, method="function_calling"),
        "responses": responses.with_structured_output(Animal),
    }
    any_tool: dict[str, Any] = {"tool_choice": "any", "parallel_tool_calls": False}  # else untaught models call on
    ending = ChatOpenAI(**where, max_tokens=512, temperature=0, logit_bias=brace(address))
    told = {
        "parsed": {name: asked.invoke(QUESTION).model_dump() for name, asked in parsed.items()},
        "json_mode": ending.with_structured_output(None, method="json_mode", include_raw=True)
        .invoke(f"{QUESTION} Answer in JSON.")["raw"]
        .content,
        "calls": {
            "whole": calls_of(chat.bind_tools([look_up, wake], **any_tool).invoke(QUESTION)),
            "strict": calls_of(chat.bind_tools([look_up, wake], strict=True, **any_tool).invoke(QUESTION)),
            "streamed": calls_of(streamed(chat.bind_tools([look_up, wake], **any_tool))),
            "named": calls_of(chat.bind_tools([look_up, wake], tool_choice="wake").invoke(QUESTION)),
            "responses": calls_of(responses.bind_tools([look_up, wake], **any_tool).invoke(QUESTION)),
        },
    }
    print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main()
