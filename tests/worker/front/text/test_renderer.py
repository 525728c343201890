"""Chats are rendered in processes of their own: what a template costs is bounded, and costs nobody else anything."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone

import pytest

from dormouse_worker.front.text.bounded_process import Late, read, write
from dormouse_worker.front.text.chat import TemplateRefused
from dormouse_worker.front.text.orders import LENGTH, encode
from dormouse_worker.front.text.renderer import Renderer, RenderLimits

LIMITS = RenderLimits(memory_bytes=64 << 20, max_chars=1000)
SHORT = replace(LIMITS, seconds=0.2)
PATIENT = replace(LIMITS, seconds=150.0)  # for chats that shall not end while others are rendered
NOW = datetime(2024, 5, 6, 7, 8, tzinfo=timezone(timedelta(hours=2), "CEST"))
LOOP = "{% for i in range(99999) %}{% for i in range(99999) %}{% endfor %}{% endfor %}"
ENDLESS = f"{{% if messages[0].content == 'slow' %}}{LOOP}{{% endif %}}{{{{ messages[0].content }}}}"


def chat(content="hi", **fields):
    ask = {"tools": None, "add_generation_prompt": True, "template_args": {}, **fields}
    return {"messages": [{"role": "user", "content": content}], **ask}


def as_it_is(text):
    return text


@pytest.fixture
async def make():
    """Make renderers that end with the test."""
    made = []

    def renderer(source, limits=LIMITS):
        sources = source if isinstance(source, dict) else {"default": source}
        made.append(Renderer(sources, {"bos_token": "<s>"}, now=lambda: NOW, limits=limits))
        return made[-1]

    yield renderer
    for one in made:
        one.close()


async def test_a_chat_is_rendered_with_everything_that_belongs_to_it(make):
    renderer = make("{{ bos_token }}{{ messages[0].content }}{{ name }}{{ strftime_now('%H:%M %Z') }}{{ tools }}")
    args = {"name": "é✓😀\x00"}
    assert await renderer.render(chat("a", template_args=args), "x", as_it_is) == "<s>aé✓😀\x0007:08 CESTNone"
    assert await renderer.render(chat("b"), "x", as_it_is) == "<s>b07:08 CESTNone", "the same process, another chat"


async def test_a_warm_renderer_renders_and_one_without_templates_starts_nothing(make):
    renderer = make("x")
    await renderer.warm()
    assert "not running" not in repr(renderer._pool._idle[-1])
    assert await renderer.render(chat(), "x", as_it_is) == "x"
    none = make({})
    await none.warm()
    assert (bool(none), bool(renderer)) == (False, True)
    assert {repr(process) for process in none._pool._idle} == {"BoundedProcess(not running)"}
    with pytest.raises(TemplateRefused, match="text or token_ids"):
        await none.render(chat(), "x", as_it_is)


async def test_at_rest_no_process_is_left_and_the_next_chat_starts_one(make):
    renderer = make("x")
    await renderer.warm()
    (process,) = [process._process for process in renderer._pool._processes if process._process is not None]
    renderer.rest()
    assert process.poll() is not None
    assert await renderer.render(chat(), "x", as_it_is) == "x"


REFUSED = {
    "its own words": ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
    "too long a text": ("{% for i in range(2000) %}a{% endfor %}", "more than 1000 characters"),
    "too much memory": ("{{ messages[0].content|center(10**9) }}", "MemoryError"),
    "too much memory for a constant": ("{{ 'a'|center(10**9) }}", "MemoryError"),
    "endless nesting": ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "RecursionError"),
}


@pytest.mark.parametrize("case", REFUSED)
async def test_what_a_template_may_not_do_is_a_refusal(make, case):
    source, words = REFUSED[case]
    with pytest.raises(TemplateRefused, match=words):
        await make(source).render(chat(), "x", as_it_is)


async def test_a_late_process_is_killed_and_the_next_chat_has_another(make):
    renderer = make(ENDLESS, SHORT)
    with pytest.raises(TemplateRefused, match=r"took longer than 0\.2 s, rendering this chat"):
        await renderer.render(chat("slow"), "x", as_it_is)
    rendered = ""
    while not rendered:
        with suppress(TemplateRefused):  # on a slow machine it may be late, too
            rendered = await renderer.render(chat("quick"), "x", as_it_is)
    assert rendered == "quick"


async def test_a_constant_that_takes_for_ever_is_a_refusal_too(make):
    renderer = make("{% set x = 9**(9**9) %}", replace(LIMITS, start_s=1.0))
    with pytest.raises(TemplateRefused, match="compiling it"):
        await renderer.render(chat(), "x", as_it_is)


async def test_a_process_that_ends_in_the_midst_is_a_refusal(make):
    renderer = make(ENDLESS)
    await renderer.warm()
    (process,) = [process._process for process in renderer._pool._processes if process._process is not None]
    process.kill()
    with pytest.raises(TemplateRefused, match="too much time or memory"):
        await renderer.render(chat(), "x", as_it_is)
    assert await renderer.render(chat("again"), "x", as_it_is) == "again"


async def test_a_terminal_that_interrupts_the_front_leaves_its_processes_to_it(make):
    renderer = make("x")
    await renderer.warm()
    (process,) = [process._process for process in renderer._pool._processes if process._process is not None]
    process.send_signal(signal.SIGINT)
    assert await renderer.render(chat(), "x", as_it_is) == "x"
    assert process.poll() is None


async def test_a_templates_own_words_are_cut(make):
    with pytest.raises(TemplateRefused) as caught:
        await make("{{ raise_exception('a' * 99999) }}").render(chat(), "x", as_it_is)
    assert len(str(caught.value)) == 2000


async def test_a_callers_slow_chats_hold_no_other_callers(make):
    renderer = make(ENDLESS, PATIENT)
    slow = [asyncio.create_task(renderer.render(chat("slow"), "greedy", as_it_is)) for _ in range(4)]
    assert await renderer.render(chat("quick"), "modest", as_it_is) == "quick"
    assert not any(task.done() for task in slow)
    assert repr(renderer) == "Renderer(default; 1 at work, Rota(3 of 1 callers))"
    renderer.close()
    for task in slow:
        with pytest.raises(TemplateRefused):
            await task
    with pytest.raises(TemplateRefused, match="the worker ends"):
        await renderer.render(chat(), "modest", as_it_is)


async def test_who_leaves_waits_no_longer_and_keeps_its_share_until_the_process_is_free(make):
    renderer = make(ENDLESS, PATIENT)
    left = asyncio.create_task(renderer.render(chat("slow"), "greedy", as_it_is))
    waiting = asyncio.create_task(renderer.render(chat("slow"), "greedy", as_it_is))
    assert await renderer.render(chat("quick"), "modest", as_it_is) == "quick"
    for task in (left, waiting):
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert repr(renderer) == "Renderer(default; 1 at work, Rota(0 of 0 callers))"


async def test_after_the_end_nothing_is_started(make):
    renderer = make("x")
    process = renderer._pool._idle[-1]
    renderer.close()
    with pytest.raises(TemplateRefused, match="the worker ends"):
        process.start()


def test_what_is_no_answer_is_an_error():
    for raw in (LENGTH.pack(1 << 31), LENGTH.pack(2) + b"[]", b""):
        source, sink = os.pipe()
        os.write(sink, raw)
        os.close(sink)
        with pytest.raises(BrokenPipeError):
            read(source, time.monotonic() + 60)
        os.close(source)


def test_nobody_waits_for_a_pipe_beyond_the_time():
    source, sink = os.pipe()
    with pytest.raises(Late):
        write(sink, b"a" * (1 << 20), 0.0)
    with pytest.raises(Late):
        read(source, 0.0)
    os.close(source)
    os.close(sink)


def test_a_message_knows_its_length():
    assert encode({"a": "é"}) == LENGTH.pack(15) + rb'{"a": "\u00e9"}'
    assert NOW.astimezone(UTC).hour == 5
