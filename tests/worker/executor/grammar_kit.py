"""Answers that grammars bind, of a real rank whose weights are random: the model pushes against each of them."""

from __future__ import annotations

import itertools
import json

from dormouse_worker.common.grammar import Grammar
from dormouse_worker.common.ipc import AddRequest, StepOutputs
from dormouse_worker.engine.testing import make_sampling
from dormouse_worker.front.text.grammar_text import to_text
from dormouse_worker.model.testing import EOS
from tests.worker.executor.sleeping_rank import SleepingRank

PROMPT = [*range(40, 60)]


def grammar(kind, value, **options):
    """Return the grammar of a constraint, as the front hands it over."""
    flags = {"disable_any_whitespace": False, "disable_additional_properties": False, **options}
    return Grammar(to_text({"kind": kind, "value": value, **flags}), (EOS,))


def schema(value, **options):
    """Return the grammar of a JSON schema, without white space: random weights like it too much."""
    return grammar("json_schema", json.dumps(value), **{"disable_any_whitespace": True, **options})


class Answer:
    """What came of one request."""

    def __init__(self):
        self.token_ids, self.logprobs, self.finish_reason, self.refusal = [], [], None, ""
        self.num_passes = 0  # that brought tokens

    @property
    def text(self):
        """Its text: a token is a byte here, and the last one its end."""
        tokens = self.token_ids[:-1] if self.finish_reason == "stop" else self.token_ids
        return bytes(map(BYTES.__getitem__, tokens)).decode()


def _byte_of_token():
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}
    return [alphabet[char] for char in sorted(alphabet)]


BYTES = _byte_of_token()


class BoundRank(SleepingRank):
    """A rank that is asked for bound answers."""

    def __init__(self, directory, worker="cpu", **settings):
        super().__init__(directory, worker, keeps=False, **{"max_num_seqs": 16, **settings})
        self._names = itertools.count()

    def add(self, bound_by, prompt=PROMPT, resumed=(), predicted=(), **sampling):
        """Ask for an answer; return its name."""
        name = f"g{next(self._names)}"
        fields = {"max_tokens": 60, "temperature": 1.0, "seed": 1, "stop_token_ids": (EOS,), "grammar": bound_by}
        asked = make_sampling(**{**fields, **sampling})
        message = AddRequest(name, list(prompt), asked, list(resumed), prediction_token_ids=list(predicted))
        self.controller.handle(message)
        return name

    def finish(self, start=0):
        """Step until each has an end; return the answers by name."""
        while self.controller.has_work:
            self.controller.step()
        self.controller.rest()
        return answers_of([message for message in self._sent[start:] if isinstance(message, StepOutputs)])

    def answer(self, bound_by, **fields):
        """Return the answer to one request."""
        start = len(self._sent)
        name = self.add(bound_by, **fields)
        return self.finish(start)[name]


def answers_of(messages):
    """Gather the outputs by request."""
    answers = {}
    for message in messages:
        for output in message.outputs:
            answer = answers.setdefault(output.request_id, Answer())
            answer.token_ids += output.token_ids
            answer.num_passes += bool(output.token_ids)
            answer.logprobs += output.logprobs or []
            answer.finish_reason = output.finish_reason or answer.finish_reason
        for name, why in (message.refused | message.failed).items():
            answers.setdefault(name, Answer()).refusal = why
    return answers
