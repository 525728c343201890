"""Collects what an answer says, numbers its calls, and leaves out the white space that only parts its sections."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dormouse_worker.front.answers.closable_json import JsonWriter
from dormouse_worker.front.answers.events import Arguments, CallBegins, Content, Event, Reasoning

_SPACE = " \t\r\n"

ToolSchemas = Mapping[str, Mapping[str, Any]]  # name → JSON Schema of the parameters


class Emitter:
    """Owns what was read and not handed out yet, and the number of calls so far."""

    def __init__(self, tools: ToolSchemas, *, is_single: bool = False) -> None:
        """`is_single`: calls after the first are counted, and not told."""
        self.tools = tools
        self._is_single = is_single
        self.num_calls = 0
        self._events: list[Event] = []
        self._held = ""  # white space of which nobody knows yet whether text follows
        self._is_fresh = False  # nothing was said since a section ended
        self._section: type[Content | Reasoning] = Content

    def __repr__(self) -> str:
        return f"Emitter({self.num_calls} calls, {len(self._events)} events)"

    def take(self) -> list[Event]:
        """Return the events since the last time, neighbours of a kind as one."""
        events, self._events = self._events, []
        return _joined(events)

    def content(self, text: str) -> None:
        """Say a text to the caller."""
        self._say(Content, text)

    def reasoning(self, text: str) -> None:
        """Think a text."""
        self._say(Reasoning, text)

    def verbatim_content(self, text: str) -> None:
        """Say a text with the white space around it."""
        self._say_all(Content, text)

    def verbatim_reasoning(self, text: str) -> None:
        """Think a text with the white space around it."""
        self._say_all(Reasoning, text)

    def part(self) -> None:
        """End a section: white space around is not part of any."""
        self._held, self._is_fresh = "", True

    def begin_call(self, name: str) -> JsonWriter:
        """Begin a call; return where its arguments go."""
        self.part()
        index, self.num_calls = self.num_calls, self.num_calls + 1
        if self._is_single and index:
            return JsonWriter(lambda _: None)
        self._events.append(CallBegins(index, name))
        return JsonWriter(lambda text: self._events.append(Arguments(index, text)))

    def finish(self) -> None:
        """Say what was held: nothing follows any more."""
        if self._held and not self._is_fresh:
            self._events.append(self._section(self._held))
        self._held = ""

    def _say_all(self, section: type[Content | Reasoning], text: str) -> None:
        self.part()
        self._section = section
        if text:
            self._events.append(section(text))

    def _say(self, section: type[Content | Reasoning], text: str) -> None:
        if section is not self._section:
            self.part()
            self._section = section
        text = self._held + text
        text = text.lstrip(_SPACE) if self._is_fresh else text
        said = text.rstrip(_SPACE)
        self._held = text[len(said) :]
        if said:
            self._events.append(section(said))
            self._is_fresh = False


def _joined(events: list[Event]) -> list[Event]:
    joined: list[Event] = []
    for event in events:
        last = joined[-1] if joined else None
        if isinstance(event, Content | Reasoning) and type(event) is type(last):
            joined[-1] = type(event)(last.text + event.text)
        elif isinstance(event, Arguments) and isinstance(last, Arguments) and event.index == last.index:
            joined[-1] = Arguments(event.index, last.text + event.text)
        else:
            joined.append(event)
    return joined
