"""What the front's cost is computed of, and the paced engine that it serves."""

from __future__ import annotations

import socket
import threading

from bench.front_cost import Cost, parse_cpu_ticks, to_rows
from bench.stand_in import LongEngine, serve
from dormouse_worker.common.frames import FrameSplitter, decode_engine, encode_frame
from dormouse_worker.common.ipc import EngineStatus, State, StepOutputs
from dormouse_worker.engine.testing import make_add


def test_processor_time_is_read_behind_a_name_with_blanks_and_brackets():
    stat = "42 (a (b) c) S 1 42 42 0 -1 4194560 100 0 0 0 250 50 0 0 20 0 9 0 100 200 300"
    assert parse_cpu_ticks(stat) == 300


def test_the_cost_is_the_median_repetition_s_and_says_how_many_tokens_a_message_has():
    costs = [Cost(cpu_s, 2.0, num_messages=1000, num_tokens=1500) for cpu_s in (0.05, 0.07, 0.9)]
    cost, share = to_rows(costs, 64)
    assert (cost.ours, cost.unit, cost.holds) == (70.0, "µs", False)
    assert share.ours == 1.5
    assert str(costs[0]) == "50.0 µs per message, 500 messages/s, 2 % of a core"


def test_the_paced_engine_gives_all_requests_one_token_in_each_step_and_ends_with_its_front():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        thread = threading.Thread(target=serve, args=(theirs, LongEngine(2048)))
        thread.start()
        ours.sendall(encode_frame([make_add("a", [5, 6], max_tokens=3), make_add("b", [7], max_tokens=3)]))
        messages = _receive_until_idle(ours)
        ours.shutdown(socket.SHUT_WR)
        thread.join()
    profiled = [m for m in messages if isinstance(m, EngineStatus) and m.state is State.PROFILED]
    steps = [m for m in messages if isinstance(m, StepOutputs)]
    assert [status.report.max_model_len for status in profiled] == [2048]
    assert [[(o.request_id, o.token_ids) for o in step.outputs] for step in steps] == [
        [("a", [5]), ("b", [7])],
        [("a", [6]), ("b", [7])],
        [("a", [5]), ("b", [7])],
    ]


def _receive_until_idle(connection):
    """Return the messages up to the step that ends all requests."""
    splitter, messages = FrameSplitter(), []
    while not any(isinstance(m, StepOutputs) and m.outputs and m.running == 0 for m in messages):
        for payload in splitter.feed(connection.recv(1 << 16)):
            messages.extend(decode_engine(payload))
    return messages
