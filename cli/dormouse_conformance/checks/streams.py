"""What a stream of Generate is."""

from __future__ import annotations

from dormouse_conformance.findings import require, require_equal
from dormouse_conformance.rules import Rule, Section
from dormouse_conformance.subject import Subject


def _end(worker: Subject) -> None:
    worker.ready()
    answer = worker.generate(worker.request())
    require_equal("finish reasons", 1, len(answer.reasons()))
    require(answer.messages[-1].finish_reason, "a finish reason in the last message", "none")


def _length(worker: Subject) -> None:
    worker.ready()
    answer = worker.generate(worker.request(max_tokens=7))
    require_equal("tokens and finish reason", (7, ["LENGTH"]), (len(answer.tokens()), answer.reasons()))


def _count(worker: Subject) -> None:
    worker.ready()
    answer, seen = worker.generate(worker.request()), 0
    for message in answer.messages:
        seen += len(message.token_ids)
        require_equal("completion_tokens", seen, message.completion_tokens)


def _usage(worker: Subject) -> None:
    worker.ready()
    usage = worker.generate(worker.request()).usage
    expected = (len(worker.prompt()), 16)
    require_equal(
        "usage.prompt_tokens and .completion_tokens", expected, (usage.prompt_tokens, usage.completion_tokens)
    )


def _first(worker: Subject) -> None:
    worker.ready()
    request = worker.request(temperature=1.0, seed=77)
    request.request_id = "conformance-1"
    first, *others = worker.generate(request).messages
    require_equal("request_id and seed", ("conformance-1", 77), (first.request_id, first.seed))
    again = [message for message in others if message.request_id or message.HasField("seed")]
    require(not again, "request_id and seed in no later message", again)


def _greedy(worker: Subject) -> None:
    worker.ready()
    alone = worker.generate(worker.request()).tokens()
    with worker.running():
        beside = worker.generate(worker.request()).tokens()
    require_equal("the tokens beside another request", alone, beside)


def _seed(worker: Subject) -> None:
    worker.ready()
    request = worker.request(temperature=1.0, seed=11)
    once = worker.generate(request).tokens()
    require_equal("the tokens of the same seed", once, worker.generate(request).tokens())


def _stop(worker: Subject) -> None:
    worker.ready()
    tokens = worker.generate(worker.request()).tokens()
    at = tokens.index(tokens[5])
    answer = worker.generate(worker.request(stop_token_ids=[tokens[5]]))
    require_equal("finish reasons", ["STOP"], answer.reasons())
    require_equal("the tokens before the stop", tokens[:at], answer.tokens()[:at])
    require(len(answer.tokens()) <= at + 1, f"at most {at + 1} tokens", len(answer.tokens()))


def _choices(worker: Subject) -> None:
    worker.ready()
    answer = worker.generate(worker.request(n=2, temperature=1.0, seed=5))
    require_equal("finish reasons of both choices", (1, 1), (len(answer.reasons(0)), len(answer.reasons(1))))
    require_equal("tokens of both choices", (16, 16), (len(answer.tokens(0)), len(answer.tokens(1))))
    told = [message.usage.completion_tokens for message in answer.messages if message.HasField("usage")]
    require_equal("completion_tokens of each usage that is told", [32], told)


def _left(worker: Subject) -> None:
    worker.ready()
    with worker.running():
        pass
    worker.until_idle()


SECTION = Section(
    "streams",
    "`Generate` streams one request's tokens. Each message has new text, new tokens, or both.",
    (
        Rule("end", "The last message of a choice has its finish reason, and no other message has one.", _end),
        Rule("length", "`max_tokens` tokens end a stream, with LENGTH.", _length),
        Rule("count", "`completion_tokens` counts the tokens told so far.", _count),
        Rule("usage", "`usage` counts the prompt's tokens and those generated.", _usage),
        Rule(
            "first", "`request_id` and `seed` stand in the first message only; both are the caller's, if set.", _first
        ),
        Rule("greedy", "At temperature 0 a prompt has the same tokens, whoever else is served.", _greedy),
        Rule("seed", "The same seed has the same tokens, at any temperature.", _seed),
        Rule("stop", "A token of `stop_token_ids` ends the stream, with STOP.", _stop),
        Rule(
            "choices",
            "With `n` there are so many choices, each with its end, and one `usage` for all.",
            _choices,
        ),
        Rule("left", "A caller who leaves frees his request.", _left),
    ),
)
