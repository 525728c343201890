"""What the lines of a batch say, and when a request is sent once more."""

from __future__ import annotations

import json

import pytest

from dormouse_cli.batch.lines import (
    BadLine,
    Item,
    NoReply,
    Reply,
    answer_line,
    body_of,
    parse_answered,
    parse_request,
)
from dormouse_cli.batch.patience import is_temporary, pause_s, tells_to_come_later

GOOD = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {"model": "tiny"}}
ITEM = Item("a", "/v1/chat/completions", {"model": "tiny"})


def test_a_line_is_a_request():
    assert parse_request(json.dumps(GOOD)) == ITEM


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"custom_id": ""}, "custom_id has to be a text that is not empty"),
        ({"custom_id": 7}, "custom_id has to be a text that is not empty"),
        ({"method": "GET"}, 'method is "GET"; allowed: POST'),
        ({"url": "/v1/../metrics"}, 'url is "/v1/../metrics"; allowed: a path of the API'),
        ({"url": "http://elsewhere/v1/chat/completions"}, "allowed: a path of the API"),
        ({"url": "/v1/" + 99 * "x" + "?"}, "xxx...; allowed: a path"),
        ({"url": None}, "url is null"),
        ({"body": []}, "body has to be an object"),
        ({"body": {"stream": True}}, "body.stream is set"),
    ],
)
def test_a_wrong_line_names_the_field(change, words):
    with pytest.raises(BadLine) as caught:
        parse_request(json.dumps(GOOD | change))
    assert words in str(caught.value)


@pytest.mark.parametrize("name", GOOD)
def test_a_missing_field_is_named(name):
    with pytest.raises(BadLine, match=f"{name} is missing"):
        parse_request(json.dumps({other: GOOD[other] for other in GOOD if other != name}))


@pytest.mark.parametrize("line", ["{", "[]", "1", 100_000 * "["])
def test_what_is_no_object_is_said_to_be_none(line):
    with pytest.raises(BadLine, match="is no JSON"):
        parse_request(line)


def test_an_answer_has_openais_form():
    assert json.loads(answer_line(ITEM, Reply(200, "r", {"x": 1}), "n")) == {
        "id": "batch_req_n",
        "custom_id": "a",
        "response": {"status_code": 200, "request_id": "r", "body": {"x": 1}},
        "error": None,
    }


def test_no_answer_has_openais_form_too():
    told = json.loads(answer_line(ITEM, NoReply("timeout", "no answer within 1 s"), "n"))
    assert (told["response"], told["error"]) == (None, {"code": "timeout", "message": "no answer within 1 s"})


@pytest.mark.parametrize(
    ("reply", "is_done"),
    [
        (Reply(200, "r", {}), True),
        (Reply(299, "r", {}), True),
        (Reply(300, "r", {}), False),
        (Reply(199, "r", {}), False),
        (Reply(400, "r", {}), False),
        (NoReply("c", "m"), False),
    ],
)
def test_a_later_run_knows_what_is_done(reply, is_done):
    assert reply.is_done is is_done
    assert parse_answered(answer_line(ITEM, reply, "n"), {"a"}) == ("a", is_done)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (json.dumps(GOOD), "is no answer of a batch"),
        ('{"custom_id": 1, "response": null, "error": null}', "is no answer of a batch"),
        ('{"custom_id": "b", "response": null, "error": null}', "'b' is none of the requests'"),
    ],
)
def test_lines_of_something_else_are_told(line, words):
    with pytest.raises(BadLine, match=words):
        parse_answered(line, {"a"})


@pytest.mark.parametrize("response", ["null", "1", "{}", '{"status_code": "200"}'])
def test_an_answer_that_says_no_status_is_not_done(response):
    assert parse_answered(f'{{"custom_id": "a", "response": {response}, "error": null}}', {"a"}) == ("a", False)


def test_the_priority_is_said_where_it_may_be_and_is_not():
    assert body_of(ITEM, model=None, priority=100) == {"model": "tiny", "priority": 100}
    said = Item("a", "/v1/responses", {"model": "tiny", "priority": 3})
    assert body_of(said, model=None, priority=100) == {"model": "tiny", "priority": 3}
    other = Item("a", "/v1/messages", {"model": "tiny"})
    assert body_of(other, model=None, priority=100) == {"model": "tiny"}


def test_another_model_takes_the_place_of_the_one_named():
    assert body_of(ITEM, model="team/big", priority=0)["model"] == "team/big"
    assert ITEM.body == {"model": "tiny"}, "the request stays as it was"


@pytest.mark.parametrize(
    ("status", "temporary", "later"),
    [
        (400, False, False),
        (408, True, False),
        (429, True, True),
        (500, True, False),
        (503, True, True),
        (499, False, False),
    ],
)
def test_which_answers_may_be_others_later(status, temporary, later):
    assert (is_temporary(status), tells_to_come_later(status)) == (temporary, later)


@pytest.mark.parametrize(
    ("num_tries", "said", "wait_s"),
    [
        *((1, "", 1), (2, "", 2), (6, "", 32), (7, "", 60), (5000, "", 60)),
        *((1, "30", 30), (9, "0.5", 0.5), (3, "-1", 4), (3, "inf", 4), (3, "nan", 4)),
        (3, "Wed, 21 Oct 2026 07:28:00 GMT", 4),
    ],
)
def test_the_server_says_when_else_pauses_double(num_tries, said, wait_s):
    assert pause_s(num_tries, {"Retry-After": said} if said else {}) == wait_s
