"""From a checked Decide call to token ids: the state once, each question with what follows it, labels.

The chat is rendered once, with a mark in the question's place: what stands before the mark is how all prompts begin,
and what stands behind it ends them all. Questions are tokenized by themselves, and nobody tokenizes the state again.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from dormouse_api.limits import MAX_DECIDE_TOKENS
from dormouse_api.status import CONTEXT_LENGTH_EXCEEDED
from dormouse_api.v1 import inference_pb2 as pb
from dormouse_worker.front.decisions.labels import Node, Tokens, nodes_of
from dormouse_worker.front.decisions.questions import THINKS, Asked, asked
from dormouse_worker.front.refusing import refuse
from dormouse_worker.front.requests import validation
from dormouse_worker.front.requests.pooling_inputs import check_fits, turns
from dormouse_worker.front.served_model import Model

USER = "user"
_PLAIN_TAIL = "\nAnswer:"  # of a model without a chat template, which goes on with a space
_BETWEEN = "\n\n"
_NOT_TOLD_APART = "the model's tokenizer does not tell its labels apart: one has no tokens, or begins another"

T = TypeVar("T")
Encode = Callable[[str], list[int]]
Labels = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Frame:
    """What stands before and behind every question."""

    head: str
    tail: str
    is_chat: bool


@dataclass(frozen=True, slots=True)
class LabelTree:
    """Labels as the model says them, and what has to be asked about them."""

    tokens: tuple[Tokens, ...]
    nodes: list[Node]  # none where they cannot be told apart


@dataclass(frozen=True, slots=True)
class Prompt:
    """One question: what is asked behind the state, and about which tokens."""

    token_ids: list[int]  # behind the state's
    labels: tuple[Tokens, ...]
    nodes: list[Node]  # none where it is refused
    refusal: str = ""


@dataclass(frozen=True, slots=True)
class Prompts:
    """All questions of a call."""

    state: list[int]
    prompts: list[Prompt]

    @property
    def branches(self) -> Iterator[tuple[list[int], Tokens]]:
        """Yield how each sequence goes on behind the state, and the tokens that are asked about."""
        for prompt in self.prompts:
            yield from ((prompt.token_ids + list(node.path), node.token_ids) for node in prompt.nodes)


class Preparation:
    """Makes the prompts of one call."""

    def __init__(self, model: Model, request: pb.DecideRequest, caller: str, max_model_len: int) -> None:
        self._model = model
        self._request = request
        self._caller = caller
        self._max_model_len = max_model_len

    async def prompts(self, check_room: Callable[[int], None]) -> Prompts:
        """Return them, checked; `check_room` is told how many sequences they are. Raises CallError."""
        frame = await self._frame()
        field = self._request.WhichOneof("state") or ""
        check_fits(field, frame.head, self._model, self._max_model_len, may_cut=False)
        questions = await self._run(self._asked, self._request.ByteSize())
        known = await self._labels(frame, Counter(question.labels for question in questions), check_room)
        nodes = [known[question.labels].nodes for question in questions]
        state = await self._run(partial(self._encode_head, frame), len(frame.head))
        self._check_state(field, state, nodes)
        found: list[Prompt] = []
        for turn in turns(questions, [len(question.text) + len(frame.tail) for question in questions]):
            ids = await self._run(partial(self._encode_all, frame, [one for _, one in turn]), len(turn[0][1].text))
            for (place, question), token_ids in zip(turn, ids, strict=True):
                validation.check_made_of(f"questions[{place}]", token_ids, self._model.card.vocab_size)
                found.append(self._prompt(state, token_ids, known[question.labels]))
        _check_tokens(len(state), found)
        return Prompts(state, found)

    async def _frame(self) -> Frame:
        request = self._request
        is_text = request.WhichOneof("state") == "text"
        if is_text and not self._model.templates:
            return Frame(request.text + _BETWEEN, _PLAIN_TAIL, is_chat=False)
        state = pb.Chat(messages=[pb.ChatMessage(role=USER, content=request.text)]) if is_text else request.chat
        mark = f"question-{secrets.token_hex(16)}"
        rendered = await self._model.rendered(_with_question(state, mark), self._caller, str)
        head, *tails = rendered.split(mark)
        if len(tails) != 1:
            limit = "once: the question's place is not known, and the model's template cannot be used for decisions"
            refuse("chat", f"rendered with its final message {len(tails)} times", limit)
        return Frame(head, tails[0], is_chat=True)

    def _asked(self) -> list[Asked]:
        return [asked(question) for question in self._request.questions]

    async def _labels(
        self, frame: Frame, wanted: Mapping[Labels, int], check_room: Callable[[int], None]
    ) -> dict[Labels, LabelTree]:
        """Return labels as the model says them behind the tail; so many questions have them.

        What they come to is checked one by one: long labels of many questions are trees of a million nodes.
        """

        def found(labels: Labels) -> LabelTree:
            said = labels if frame.is_chat else [f" {label}" for label in labels]
            tokens = tuple(_label_ids(self._encode, frame.tail, said))
            return LabelTree(tokens, nodes_of(tokens))

        known: dict[Labels, LabelTree] = {}
        num_sequences = 0
        for labels in sorted(wanted):
            num_bytes = len(labels) * (len(frame.tail) + len(labels[0]))
            known[labels] = await self._run(partial(found, labels), num_bytes)
            num_sequences += wanted[labels] * len(known[labels].nodes)
            check_room(num_sequences)
            for token_ids in known[labels].tokens:
                validation.check_made_of("questions", token_ids, self._model.card.vocab_size)
        return known

    def _encode(self, text: str) -> list[int]:
        return self._model.codec.encode(text, add_special_tokens=False)

    def _encode_head(self, frame: Frame) -> list[int]:
        return self._model.codec.encode(frame.head, add_special_tokens=not frame.is_chat)

    def _encode_all(self, frame: Frame, questions: Sequence[Asked]) -> list[list[int]]:
        return [self._encode(question.text + frame.tail) for question in questions]

    async def _run(self, work: Callable[[], T], num_bytes: int) -> T:
        return await self._model.work.run(work, caller=self._caller, num_bytes=num_bytes)

    def _check_state(self, field: str, state: list[int], nodes: Sequence[Sequence[Node]]) -> None:
        validation.check_made_of(field, state, self._model.card.vocab_size)
        if len(state) >= self._max_model_len:
            limit = f"below the model length {self._max_model_len}, so that a question can follow"
            refuse(field, f"{len(state)} tokens", limit, reason=CONTEXT_LENGTH_EXCEEDED)
        check_repeated(len(state), sum(map(len, nodes)))

    def _prompt(self, state: list[int], token_ids: list[int], tree: LabelTree) -> Prompt:
        """Return the question, refused where its labels are no labels or it is too long."""
        if not tree.nodes:
            return Prompt(token_ids, tree.tokens, [], _NOT_TOLD_APART)
        longest = len(state) + len(token_ids) + max(len(node.path) for node in tree.nodes)
        if longest >= self._max_model_len:
            why = f"it has {longest} tokens with the state; allowed: below the model length {self._max_model_len}"
            return Prompt(token_ids, tree.tokens, [], why)
        return Prompt(token_ids, tree.tokens, tree.nodes)


def check_repeated(state_tokens: int, num_sequences: int) -> None:
    """The state in all prompts has no more tokens than are taken of a call. Raises CallError."""
    most = MAX_DECIDE_TOKENS // max(1, state_tokens)
    if num_sequences > most:
        value = f"{num_sequences} sequences beside a state of {state_tokens} tokens"
        refuse("questions", value, f"at most {most} beside it")


def _check_tokens(state_tokens: int, prompts: Sequence[Prompt]) -> None:
    num_tokens = sum(state_tokens + len(p.token_ids) + len(node.path) for p in prompts for node in p.nodes)
    if num_tokens > MAX_DECIDE_TOKENS:
        refuse("questions", f"{num_tokens} tokens in all prompts", f"at most {MAX_DECIDE_TOKENS}")


def _with_question(chat: pb.Chat, mark: str) -> pb.Chat:
    """Return the chat with the mark at the end of the user's last turn, in a new one where another spoke last."""
    made = pb.Chat()
    made.CopyFrom(chat)
    last = made.messages[-1]
    if last.role == USER:
        last.content = f"{last.content}{_BETWEEN if last.content else ''}{mark}"
    else:
        made.messages.add(role=USER, content=mark)
    made.template_args.update({THINKS: False})
    return made


def _label_ids(encode: Encode, tail: str, labels: Sequence[str]) -> Iterator[Tokens]:
    """Yield each label's ids as they follow the tail's; by themselves, where the two would be tokenized as one."""
    before = encode(tail)
    for label in labels:
        joined = encode(tail + label)
        follows = joined[: len(before)] == before
        yield tuple(joined[len(before) :] if follows else encode(label))
