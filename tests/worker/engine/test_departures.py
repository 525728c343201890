"""Requests that depart: their blocks are written while their prompts are computed; then they go, and say the same."""

import pytest

from dormouse_worker.engine import block_writer, departures
from dormouse_worker.engine.no_keeper import NoKeeper
from dormouse_worker.kv_store.file_store import FileBlockStore
from tests.worker.engine.store_kit import BLOCK_BYTES, PROMPT, StoredEngine
from tests.worker.engine.test_hand_over import go_on

REALM, LIMIT = bytes(32), 1 << 20
LONG = range(100, 230)  # two passes of 64 tokens, and two tokens


def engine_of(path, **how):
    return StoredEngine(FileBlockStore(path, REALM, LIMIT), num_blocks=80, max_model_len=256, **how)


@pytest.fixture
def prefill(tmp_path):
    return engine_of(tmp_path)


@pytest.fixture
def decode(tmp_path):
    return engine_of(tmp_path)


def run(engine):
    """Step to the end, with all that is given to the disk written between two passes; return what was said."""
    ends = []
    while engine.engine.has_work:
        outputs = engine.engine.step()
        engine.finish_writing()
        for output in outputs.outputs if outputs else ():
            engine.said.setdefault(output.request_id, []).extend(output.token_ids)
            ends += [output.finish_reason] if output.finish_reason else []
        engine.told += [outputs.kv_store] if outputs and outputs.kv_store else []
    engine.engine.check_integrity()
    return engine.said.pop("r"), ends


@pytest.mark.parametrize(("windows", "num_needed"), [((None,), 32), ((None, 6), 34), ((5,), 1)])
def test_a_request_goes_after_its_first_token_with_all_its_full_blocks(tmp_path, windows, num_needed):
    prefill, decode = engine_of(tmp_path, windows=windows), engine_of(tmp_path, windows=windows)
    prefill.add(LONG, 12, remote_decode=True)
    said, ends = run(prefill)
    assert (len(said), ends) == (1, ["abort"])
    assert prefill.count("writes") == prefill.count("handed_over")
    assert go_on(decode, said, LONG) == num_needed
    assert decode.misses() == {}


def test_blocks_are_written_before_the_prompt_is_computed_to_its_end(prefill):
    prefill.add(LONG, 12, remote_decode=True)
    for number in (0, 16, 32):
        prefill.step()
        prefill.finish_writing()
        assert prefill.count("handed_over") == number
    assert len(prefill.said["r"]) == 1


def test_what_is_cached_and_was_never_written_is_written(prefill, decode):
    prefill.ask(PROMPT, request_id="before")
    assert prefill.count("writes") == 0
    prefill.add(PROMPT, 12, remote_decode=True)
    said, _ = run(prefill)
    assert go_on(decode, said) == 4


def test_it_goes_on_until_its_blocks_are_there(prefill, monkeypatch):
    monkeypatch.setattr(departures, "HAND_OVER_S", 1e9)
    monkeypatch.setattr(prefill.keeper._threads, "is_writing", lambda _: True)
    prefill.add(PROMPT, 12, remote_decode=True)
    prefill.run()
    assert prefill.said["r"] == prefill.expected(PROMPT, 12)


def test_a_disk_that_stalls_keeps_it_for_a_moment_only(prefill, decode, monkeypatch):
    monkeypatch.setattr(departures, "HAND_OVER_S", 0.0)
    monkeypatch.setattr(prefill.keeper._threads, "room_for_writes", lambda: 0)
    prefill.add(PROMPT, 12, remote_decode=True)
    said, ends = run(prefill)
    assert (len(said), ends) == (1, ["abort"])
    assert go_on(decode, said) == 0


def test_only_so_much_is_copied_in_a_pass_whoever_it_is_of(prefill, monkeypatch):
    monkeypatch.setattr(block_writer, "HAND_ON_BYTES", 3 * BLOCK_BYTES)
    for number in range(2):
        prefill.add(range(100 * number, 100 * number + 9), 12, f"r{number}", remote_decode=True)
    for written in (0, 3, 4):
        prefill.step()
        prefill.finish_writing()
        assert prefill.count("handed_over") == written


def test_an_answer_of_one_token_ends_where_it_began(prefill):
    prefill.add(PROMPT, 1, remote_decode=True)
    assert run(prefill) == (prefill.expected(PROMPT, 1), ["length"])


def test_without_a_store_it_is_answered_whole(tmp_path):
    engine = engine_of(tmp_path)
    engine.engine.keeper = NoKeeper()
    engine.add(PROMPT, 12, remote_decode=True)
    assert run(engine) == (engine.expected(PROMPT, 12), ["length"])


def test_others_stay(prefill):
    prefill.add(PROMPT, 12, remote_decode=True)
    prefill.add(range(300, 317), 12, "stays")
    prefill.run()
    assert prefill.said["stays"] == prefill.expected(range(300, 317), 12)
    assert prefill.count("handed_over") == 4
