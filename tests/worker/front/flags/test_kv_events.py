"""`--kv-events-config`: vLLM's JSON, and that what is wrong in it is named."""

from __future__ import annotations

import json

import pytest

from dormouse_worker.common.kv_events import OFF, KvEventsConfig
from dormouse_worker.front.flags.settings import parse_settings


def parse(**fields):
    return parse_settings(["--model=/m", "--kv-events-config", json.dumps(fields)], {})


def test_front_and_engine_get_what_vllms_users_write():
    fields = {"publisher": "zmq", "endpoint": "tcp://*:5557", "topic": "kv@10.0.0.1@model", "hwm": 5}
    front, engine = parse(enable_kv_cache_events=True, **fields)
    assert front.kv_events == engine.kv_events_config == KvEventsConfig(enable_kv_cache_events=True, **fields)
    assert front.kv_events.is_on


def test_it_is_off_unless_asked_for():
    front, engine = parse_settings(["--model=/m"], {})
    assert front.kv_events == engine.kv_events_config == OFF
    assert not OFF.is_on
    assert not parse(enable_kv_cache_events=True, publisher="null")[0].kv_events.is_on


def test_where_a_worker_publishes_does_not_change_what_its_engine_is():
    assert parse(enable_kv_cache_events=True)[1].digest() == parse()[1].digest()


@pytest.mark.parametrize(
    "endpoint", ["tcp://*:1", "tcp://127.0.0.1:*", "tcp://[::]:65535", "tcp://router.team.svc:5557", "ipc:///run/kv"]
)
def test_an_endpoint_is_one_of_tcp_or_of_a_file(endpoint):
    assert parse(endpoint=endpoint)[0].kv_events.endpoint == endpoint


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"endpoint": "tcp://*:65536"}, "endpoint is 'tcp://*:65536'; write tcp://*:PORT"),
        ({"endpoint": "inproc://kv"}, "endpoint is 'inproc://kv'"),
        ({"endpoint": "tcp://*"}, "endpoint is 'tcp://*'"),
        ({"replay_endpoint": ""}, "replay_endpoint is ''"),
        ({"replay_endpoint": "tcp://router:5558"}, "callers connect to it"),
        ({"publisher": "kafka"}, "publisher is 'kafka'; allowed are zmq and null"),
        ({"hwm": 0}, "`int` >= 1 - at `$.hwm`"),
        ({"buffer_steps": 100_001}, "`int` <= 100000 - at `$.buffer_steps`"),
        ({"topic": "x" * 513}, "length <= 512 - at `$.topic`"),
        ({"enable": True}, "unknown field `enable`"),
    ],
)
def test_what_is_wrong_is_named(fields, words, capsys):
    with pytest.raises(SystemExit):
        parse(**fields)
    said = capsys.readouterr().err
    assert "argument --kv-events-config: " in said
    assert words in said


def test_vllms_own_engine_is_not_given_it(capsys):
    with pytest.raises(SystemExit):
        parse_settings(["--model=/m", "--runtime=vllm", '--kv-events-config={"enable_kv_cache_events": true}'], {})
    assert "kv_events_config is KvEventsConfig(" in capsys.readouterr().err
