"""What a Decide call may ask, checked, and how the model reads it. Pure; nothing has been tokenized yet."""

from __future__ import annotations

import string
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dormouse_api.limits import (
    MAX_CACHE_KEY_BYTES,
    MAX_DECIDE_CHOICES,
    MAX_DECIDE_LEVELS,
    MAX_DECIDE_QUESTIONS,
    MAX_LABEL_BYTES,
    MAX_MESSAGE_BYTES,
    MAX_PRIORITY,
)
from dormouse_api.v1 import inference_pb2 as pb
from dormouse_worker.front.refusing import check_request_id, refuse, refuse_images
from dormouse_worker.front.text.chat_checks import check_chat

THINKS = "enable_thinking"  # as templates of models that can leave it out call it
_LETTERS = tuple(string.ascii_uppercase)
_LETTER = "Answer with the letter of one option only."
_NUMBER = "Answer with the number of one option only."
_LABEL = "Answer with the label of one option only."


@dataclass(frozen=True, slots=True)
class Asked:
    """A question as the model reads it behind the state, and what it may say, in the order of the options."""

    text: str
    labels: tuple[str, ...]


def check_decide(request: pb.DecideRequest) -> None:
    """Check everything that needs no tokenizing. Raises CallError INVALID_ARGUMENT."""
    if (size := request.ByteSize()) > MAX_MESSAGE_BYTES:
        refuse("message", f"{size} bytes", f"at most {MAX_MESSAGE_BYTES} bytes")
    check_request_id(request.request_id)
    if abs(request.priority) > MAX_PRIORITY:
        refuse("priority", str(request.priority), f"from -{MAX_PRIORITY} to {MAX_PRIORITY}")
    if (num_bytes := len(request.prompt_cache_key.encode())) > MAX_CACHE_KEY_BYTES:
        refuse("prompt_cache_key", f"{num_bytes} bytes", f"at most {MAX_CACHE_KEY_BYTES}")
    if not 0 <= request.min_label_mass <= 1:  # a NaN is outside every range
        refuse("min_label_mass", f"{request.min_label_mass:.10g}", "from 0 to 1")
    _check_state(request)
    if not 1 <= len(request.questions) <= MAX_DECIDE_QUESTIONS:
        refuse("questions", f"{len(request.questions)} questions", f"1 to {MAX_DECIDE_QUESTIONS}")
    for place, question in enumerate(request.questions):
        _check_question(f"questions[{place}]", question)


def asked(question: pb.DecideQuestion) -> Asked:
    """Return a checked question as the model reads it."""
    match question.WhichOneof("kind"):
        case "predicate":
            lines = [("yes", question.predicate.if_true), ("no", question.predicate.if_false)]
            written = [f"{label}: {means}" if means else label for label, means in lines]
            return Asked(_text(question, written, "Answer with yes or no only."), ("yes", "no"))
        case "score":
            levels = question.score.levels
            labels = tuple(string.digits[: len(levels)])
            return Asked(_text(question, _written(labels, levels), "Answer with the number of one level only."), labels)
        case _:
            options = question.choice.options
            labels, how = _labels(options)
            return Asked(_text(question, _written(labels, options), how), labels)


def _check_state(request: pb.DecideRequest) -> None:
    kind = request.WhichOneof("state")
    if kind is None:
        refuse("state", "missing", "one of text or chat is needed")
    if kind == "text":
        if not request.text:
            refuse("text", "empty", "at least 1 character")
        return
    chat = request.chat
    check_chat(chat)
    refuse_images(chat, "questions are about text")
    if chat.continue_final_message:
        refuse("chat.continue_final_message", "true", "false: the question follows")
    if chat.HasField("add_generation_prompt") and not chat.add_generation_prompt:
        refuse("chat.add_generation_prompt", "false", "true: a label is said in the assistant's turn")
    if THINKS in chat.template_args.fields and chat.template_args[THINKS] is not False:
        refuse(f"chat.template_args.{THINKS}", "not false", "false: a label is said at once")


def _check_question(field: str, question: pb.DecideQuestion) -> None:
    match question.WhichOneof("kind"):
        case "choice":
            _check_options(f"{field}.choice.options", question.choice.options, MAX_DECIDE_CHOICES)
            _check_labels(f"{field}.choice.options", [option.label for option in question.choice.options])
        case "score":
            levels = question.score.levels
            _check_options(f"{field}.score.levels", levels, MAX_DECIDE_LEVELS)
            if any(level.label for level in levels):
                refuse(f"{field}.score.levels", "labelled", "no labels: a level's is its number")
        case None:
            refuse(field, "without a kind", "one of predicate, choice and score is needed")


def _check_options(field: str, options: Sequence[pb.DecideOption], most: int) -> None:
    if not 2 <= len(options) <= most:
        refuse(field, f"{len(options)} options", f"2 to {most}")
    for place, option in enumerate(options):
        if not option.name:
            refuse(f"{field}[{place}].name", "empty", "at least 1 character")


def _check_labels(field: str, labels: Sequence[str]) -> None:
    if not any(labels):
        return
    for place, label in enumerate(labels):
        if not 1 <= (num_bytes := len(label.encode())) <= MAX_LABEL_BYTES:
            refuse(
                f"{field}[{place}].label", f"{num_bytes} bytes", f"1 to {MAX_LABEL_BYTES}, as other options have one"
            )
    [(same, count)] = Counter(labels).most_common(1)
    if count > 1:
        refuse(field, f"labelled {same!r} more than once", "a label of its own for each option")


def _labels(options: Sequence[pb.DecideOption]) -> tuple[tuple[str, ...], str]:
    """Return what options are called, and what the model is told of it. Numbers have equally many digits."""
    count = len(options)
    if options[0].label:
        return tuple(option.label for option in options), _LABEL
    if count <= len(_LETTERS):
        return _LETTERS[:count], _LETTER
    return tuple(f"{number:0{len(str(count))}}" for number in range(1, count + 1)), _NUMBER


def _written(labels: Sequence[str], options: Sequence[pb.DecideOption]) -> Iterator[str]:
    for label, option in zip(labels, options, strict=True):
        yield f"{label}: {option.name} - {option.description}" if option.description else f"{label}: {option.name}"


def _text(question: pb.DecideQuestion, options: Iterator[str] | Sequence[str], how: str) -> str:
    beginning = [f"Question: {question.instructions}"] if question.instructions else []
    return "\n".join([*beginning, *options, how])
