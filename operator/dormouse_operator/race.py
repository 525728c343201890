"""Runs coroutines until the first of them ends. Knows nothing of what they do."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any


async def race(*coroutines: Coroutine[Any, Any, Any]) -> None:
    """Run all until the first ends; cancel and await the others; raise what the first raised."""
    tasks = [asyncio.create_task(coroutine) for coroutine in coroutines]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
    for result in results:
        for error in _flatten(result):
            raise error


def _flatten(result: object) -> list[BaseException]:
    """Return the errors in what a task gave, those inside a group of errors one by one; cancelling is none."""
    if isinstance(result, BaseExceptionGroup):
        return [error for inner in result.exceptions for error in _flatten(inner)]
    return [result] if isinstance(result, Exception) else []
