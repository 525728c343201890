"""Prompts that begin alike."""

from __future__ import annotations

from dormouse_api.capabilities import Capability
from dormouse_conformance.findings import require, require_equal
from dormouse_conformance.rules import Rule, Section
from dormouse_conformance.subject import Subject


def _repeats(worker: Subject) -> None:
    request = worker.request(_long_prompt(worker, start=5))
    once = worker.generate(request)
    again = worker.generate(request)
    require(again.usage.cached_tokens > 0, "cached_tokens > 0 at the second time", again.usage.cached_tokens)
    require_equal("the tokens", once.tokens(), again.tokens())


def _forgets(worker: Subject) -> None:
    request = worker.request(_long_prompt(worker, start=9))
    worker.generate(request)
    worker.command("ResetPrefixCache")
    require_equal("cached_tokens after ResetPrefixCache", 0, worker.generate(request).usage.cached_tokens)


def _long_prompt(worker: Subject, start: int) -> list[int]:
    """Return a prompt of more than two blocks."""
    size = worker.ready().report.block_size
    return worker.prompt(min(2 * size + 3, worker.model.max_model_len - 20), start)


SECTION = Section(
    "cache",
    "Blocks of a prompt may be kept for a later one that begins with the same tokens.",
    (
        Rule(
            "repeats",
            "A prompt of several blocks that comes again has `cached_tokens`, and the same answer.",
            _repeats,
            Capability.PREFIX_CACHE,
        ),
        Rule("forgets", "After `ResetPrefixCache` nothing is cached.", _forgets, Capability.PREFIX_CACHE),
    ),
)
