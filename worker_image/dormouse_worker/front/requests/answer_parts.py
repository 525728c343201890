"""What is told apart in a call's answers: from the request to parsers, from what they tell to messages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from dormouse_api.v1 import inference_pb2 as pb
from dormouse_worker.front.answers.calls import MAX_NAME_CHARS, checked_name
from dormouse_worker.front.answers.closable_json import Malformed
from dormouse_worker.front.answers.emitter import ToolSchemas
from dormouse_worker.front.answers.events import Arguments, CallBegins, Content, Event
from dormouse_worker.front.answers.families import HARMONY
from dormouse_worker.front.answers.parser import AnswerParser, Grammar
from dormouse_worker.front.answers.registry import Families
from dormouse_worker.front.answers.response_template import RESPONSE_TEMPLATE, Kind, ResponseTemplate
from dormouse_worker.front.refusing import refuse
from dormouse_worker.front.requests.streams import Piece
from dormouse_worker.front.served_model import Model
from dormouse_worker.front.text.plain import in_order

NUM_BEGUN_TOKENS = (64, 1024, 16_384)  # of a prompt that are looked through for where the answer begins
NUM_TAIL_TOKENS = 8  # of a prompt: a marker and white space are fewer
ABORT = "abort"  # of an answer that goes on elsewhere


@dataclass(frozen=True, slots=True)
class Parsing:
    """How the answers of one call are read."""

    grammar: Grammar
    schemas: ToolSchemas
    strict: str = ""  # the first tool whose arguments have to fit its schema

    @property
    def is_forced(self) -> bool:
        """Return whether the answer has to be a call."""
        return self.grammar.forced is not None

    def parsers(self, num_choices: int) -> list[AnswerParser]:
        """Return a parser for each choice."""
        return [AnswerParser(self.grammar, self.schemas) for _ in range(num_choices)]


def read_parsing(model: Model, request: pb.GenerateRequest, prompt: Sequence[int]) -> Parsing | None:
    """Return how answers are told apart, None if nothing is. Raises CallError INVALID_ARGUMENT."""
    if not request.HasField("answer_parsing"):
        return None
    kind = request.WhichOneof("prompt")
    if kind != "chat":
        refuse("answer_parsing", f"set with prompt.{kind}", "of a chat only")
    asked, schemas = request.answer_parsing, tool_schemas(request.chat)
    _check_names(asked, schemas, model.families)
    grammar = _grammar(model, asked, prompt, has_form=is_json(request.sampling_params.structured_outputs))
    calls = bool(grammar.tools) or grammar.is_harmony or grammar.forced is not None
    if calls:
        _check_tools(request.chat)
    is_told = calls or grammar.reasoning or grammar.response
    return Parsing(grammar, schemas, _first_strict(request.chat) if calls else "") if is_told else None


def is_json(asked: pb.StructuredOutputs) -> bool:
    """Return whether an answer of this form has no markers: a call can only come instead of it."""
    return asked.WhichOneof("constraint") in {"json_schema", "json_object", "choice"}


def parts_of(parser: AnswerParser, piece: Piece) -> Iterator[pb.AnswerPart]:
    """Yield what a piece of the answer says."""
    events = parser.feed(piece.text)
    if piece.finish_reason not in {None, ABORT}:
        events += parser.finish()
    return map(_to_part, events)


def tool_schemas(chat: pb.Chat) -> ToolSchemas:
    """Return the parameters of a chat's tools by name; what is no function has none."""
    return {
        str(function["name"]): function["parameters"] if isinstance(function.get("parameters"), dict) else {}
        for function in _functions(chat)
        if "name" in function
    }


def _check_names(asked: pb.AnswerParsing, schemas: ToolSchemas, families: Families) -> None:
    for field, value, known in (
        ("tool_call_parser", asked.tool_call_parser, families.tool_names),
        ("reasoning_parser", asked.reasoning_parser, families.reasoning_names),
    ):
        if value not in known:
            refuse(f"answer_parsing.{field}", repr(value[:64]), f"one of {', '.join(known[1:])}")
    if asked.WhichOneof("forced") == "function" and asked.function not in schemas:
        refuse("answer_parsing.function", repr(asked.function[:64]), "the name of one of chat.tools")
    if asked.any_function and not schemas:
        refuse("answer_parsing.any_function", "true without chat.tools", "at least one tool to call")


def _check_tools(chat: pb.Chat) -> None:
    """Refuse functions that no answer can call: a name stands for one of them, and is found in a text."""
    names = [str(function.get("name", "")) for function in _functions(chat)]
    for name, count in Counter(names).items():
        if count > 1:
            refuse("chat.tools", f"{count} functions named {name[:64]!r}", "names that differ")
        try:
            checked_name(name)
        except Malformed:
            limit = f"names of 1 to {MAX_NAME_CHARS} characters without white space"
            refuse("chat.tools", f"a function named {name[:64]!r}", limit)


def _functions(chat: pb.Chat) -> list[dict[str, Any]]:
    """Return the descriptions of a chat's functions; what of the tools is none is left out."""
    functions = [tool.get("function") for tool in in_order(chat.tools, chat.key_order)]
    return [function for function in functions if isinstance(function, dict)]


def _grammar(model: Model, asked: pb.AnswerParsing, prompt: Sequence[int], *, has_form: bool) -> Grammar:
    """Return what the answer is written in; beside a form, calls are told apart where a grammar knows them."""
    forced = _forced(asked)
    tools = (asked.tool_call_parser or model.tool_call_parser) if asked.tool_calls else ""
    thinks = (asked.reasoning_parser or model.reasoning_parser) if asked.reasoning else ""
    reasoning, family = model.families.reasoning.get(thinks), model.families.tools.get(tools)
    can_call = forced is None and family is not None and not (has_form and not family.may_replace_a_form)
    own = model.own_answers if forced is None and not has_form and _is_own(tools, thinks) else None
    return Grammar(
        tools=family if can_call else None,
        reasoning=reasoning,
        begins_in_reasoning=own is None and reasoning is not None and _ends_with(model, prompt, reasoning.opening),
        is_harmony=HARMONY in {tools, thinks} and forced is None and not has_form,
        forced=forced,
        is_single=asked.single_call,
        response=own,
        told=_told(tools, thinks),
        begun=_begun(model, prompt, own) if own else "",
    )


def _is_own(tools: str, thinks: str) -> bool:
    """Return whether a checkpoint's own description reads the answer: a family's calls stand in any text."""
    return tools == RESPONSE_TEMPLATE or (not tools and thinks == RESPONSE_TEMPLATE)


def _told(tools: str, thinks: str) -> frozenset[Kind]:
    named: dict[Kind, bool] = {"calls": tools == RESPONSE_TEMPLATE, "reasoning": thinks == RESPONSE_TEMPLATE}
    return frozenset({"content", *(kind for kind, is_told in named.items() if is_told)})


def _begun(model: Model, prompt: Sequence[int], own: ResponseTemplate) -> str:
    """Return what the prompt has of the answer already, as far as it is looked for."""
    for num_tokens in NUM_BEGUN_TOKENS:
        tail = model.codec.decode(list(prompt[-num_tokens:]), skip_special_tokens=False)
        if (begun := own.begun(tail)) is not None:
            return begun
    return ""


def _forced(asked: pb.AnswerParsing) -> str | None:
    """Return the function that has to be called, "" for any, None if none has to."""
    if asked.WhichOneof("forced") == "function":
        return str(asked.function)
    return "" if asked.any_function else None


def _first_strict(chat: pb.Chat) -> str:
    """Return the name of the first tool that says strict, "" if none does."""
    strict = (function for function in _functions(chat) if function.get("strict") is True)
    return next((str(function.get("name", "")) for function in strict), "")


def _ends_with(model: Model, prompt: Sequence[int], marker: str) -> bool:
    tail = model.codec.decode(list(prompt[-NUM_TAIL_TOKENS:]), skip_special_tokens=False)
    return tail.rstrip().endswith(marker)


def _to_part(event: Event) -> pb.AnswerPart:
    if isinstance(event, CallBegins):
        return pb.AnswerPart(call=pb.ToolCall(index=event.index, name=event.name))
    if isinstance(event, Arguments):
        return pb.AnswerPart(arguments=pb.ToolCallArguments(index=event.index, json=event.text))
    if isinstance(event, Content):
        return pb.AnswerPart(content=event.text)
    return pb.AnswerPart(reasoning=event.text)
