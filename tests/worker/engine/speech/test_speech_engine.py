"""Windows of sound: who gets a place, what a pass computes, when a window is done, what becomes of one that fails."""

import pytest

from dormouse_worker.common.errors import GroupBroken
from dormouse_worker.common.ipc import EngineStatus, ModelInfo, State
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.common.task_messages import AddPooling, AddWindow, WindowParams
from dormouse_worker.engine.assembly import build_stepper
from dormouse_worker.engine.intake import take
from dormouse_worker.engine.speech.batch import SpeechOutput, SpeechToken
from dormouse_worker.engine.speech.engine import NOT_FINITE, SpeechEngine, SpeechLimits
from dormouse_worker.engine.testing import ManualClock, make_add, make_report

START, END = 10, 99
DE = 12


class Ears:
    """Implements `SpeechExecutor`: says the words of `script` in their order, by attempt, then the end."""

    def __init__(self, *attempts):
        self.attempts = attempts or ([5, 6],)
        self.batches = []
        self.error = None
        self.odd = ()
        self.unreadable = {}

    def execute_speech(self, batch):
        self.batches.append(batch)
        if self.error:
            raise self.error
        return SpeechOutput([self._next(row) for row in batch.rows], self.odd, self.unreadable)

    def verify(self):
        if self.error:
            raise self.error

    def _next(self, row):
        if row.language_ids:
            return SpeechToken(DE, -0.1)
        said = self.attempts[round(row.temperature * 10)]
        place = len(row.token_ids) - row.num_prompt
        logprob = -0.5 if row.temperature else -2.0
        return SpeechToken(said[place], logprob) if place < len(said) else SpeechToken(END, logprob, True, 0.75)


class House:
    """An engine, its passes, and time."""

    def __init__(self, *attempts, places=2):
        self.ears, self.clock = Ears(*attempts), ManualClock()
        self.engine = SpeechEngine(self.ears, SpeechLimits(places, 16), self.clock)

    def add(self, name, priority=0, *, prompt=(START, 0, 13), start_place=0, language_ids=(), **params):
        known = WindowParams(**{"max_tokens": 8, "bytes_per_token": 1, **params})
        return self.engine.add(
            AddWindow(name, f"{name}.w", list(prompt), known, start_place, list(language_ids), priority)
        )

    def run(self):
        told = []
        while (outputs := self.engine.step()) is not None:
            told += outputs.windows
            self.engine.check_integrity()
        return told


def test_a_window_is_encoded_once_and_each_pass_computes_what_is_not_cached():
    house = House()
    assert house.add("a") is None
    (told,) = house.run()
    assert (told.request_id, told.token_ids, told.avg_logprob, told.num_tokens) == ("a", [5, 6], -2.0, 3)
    assert [len(batch.encode) for batch in house.ears.batches] == [1, 0, 0]
    rows = [batch.rows[0] for batch in house.ears.batches]
    assert [(row.num_cached, len(row.token_ids), row.start_place) for row in rows] == [
        (0, 3, 0),
        (3, 4, -1),
        (4, 5, -1),
    ]


def test_one_window_is_encoded_in_a_pass_beside_the_rows_of_all_others():
    house = House(places=2)
    for name, priority in (("a", 1), ("b", 0), ("c", 0)):
        assert house.add(name, priority) is None
    told = house.run()
    assert [one.request_id for one in told] == ["b", "c", "a"]
    assert [[window.tensors for window in batch.encode] for batch in house.ears.batches[:4]] == [
        ["b.w"],
        ["c.w"],
        [],
        ["a.w"],
    ]
    assert [len(batch.rows) for batch in house.ears.batches[:4]] == [1, 2, 2, 2]


def test_a_language_is_found_first_and_stands_behind_the_start():
    house = House()
    house.add("a", prompt=(7, 8, START, 0, 13), start_place=2, language_ids=(11, DE))
    (told,) = house.run()
    assert told.language_id == DE
    asked, first, *_ = [batch.rows[0] for batch in house.ears.batches]
    assert (asked.token_ids, asked.language_ids) == ([START], (11, DE))
    assert (first.token_ids, first.num_cached) == ([7, 8, START, DE, 13], 0)


@pytest.mark.parametrize(
    ("thresholds", "ids", "temperature", "num_tokens"),
    [
        ({}, [5, 6], 0.0, 3),
        ({"logprob_threshold": -1.0}, [7], 0.5, 5),
        ({"compression_ratio_threshold": 0.1}, [7], 0.5, 5),  # both repeat themselves: the last try counts
        ({"compression_ratio_threshold": 9.0}, [5, 6], 0.0, 3),
    ],
)
def test_the_next_temperature_is_tried_where_a_window_is_poor(thresholds, ids, temperature, num_tokens):
    house = House([5, 6], None, None, None, None, [7])
    house.add("a", temperatures=(0.0, 0.5), **thresholds)
    (told,) = house.run()
    assert (told.token_ids, told.temperature, told.num_tokens) == (ids, temperature, num_tokens)
    assert sum(len(batch.encode) for batch in house.ears.batches) == 1
    seeds = {batch.rows[0].temperature: batch.rows[0].seed for batch in house.ears.batches}
    assert len(set(seeds.values())) == len(seeds)


def test_a_window_in_which_nobody_speaks_is_silent_and_not_tried_again():
    house = House([])
    house.add("a", temperatures=(0.0, 0.5), logprob_threshold=-1.0, no_speech_threshold=0.6)
    (told,) = house.run()
    assert (told.is_silent, told.token_ids, told.no_speech_prob, told.num_tokens) == (True, [], 0.75, 1)


def test_an_output_has_as_many_tokens_as_it_may_have():
    house = House([5] * 20)
    house.add("a", max_tokens=4)
    (told,) = house.run()
    assert told.token_ids == [5] * 4


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"start_place": 3}, "start_place is 3; the prompt has 3 tokens"),
        ({"start_place": 2, "language_ids": [1]}, "start_place is 2"),
        ({"max_tokens": 14}, "3 tokens of prompt and 14 of output; the limit is 16 together"),
        ({"max_tokens": 0}, "3 tokens of prompt and 0 of output"),
        ({"temperatures": ()}, "temperatures is empty"),
    ],
)
def test_what_the_front_should_have_refused_is_refused_here(fields, words):
    house = House()
    assert words in house.add("a", **fields)
    assert not house.engine.has_work


def test_nothing_but_windows_is_taken():
    house = House()
    assert house.engine.add(AddPooling("a", [[1]])) == "the model turns sound into text, and nothing else"
    assert house.engine.add(make_add("b", [1])) == "the model turns sound into text, and nothing else"


def test_a_language_that_is_no_token_is_refused_before_the_model_sees_it():
    house, status = House(), EngineStatus(State.READY, model=ModelInfo(1, "float32", vocab_size=20))
    params = WindowParams(max_tokens=2, bytes_per_token=1)
    refused = take(AddWindow("a", "w", [1, 2, 3], params, 0, [20]), house.engine, status)
    assert "language_ids has 20" in refused.failed["a"]
    assert take(AddWindow("a", "w", [1, 2, 3], params, 0, [19]), house.engine, status) is None


def test_a_window_that_is_given_up_frees_its_place_at_once():
    house = House(places=1)
    house.add("a")
    house.add("b")
    house.engine.step()
    assert [(one.request_id, one.finish_reason) for one in house.engine.abort(["a", "x"])] == [("a", "abort")]
    house.engine.check_integrity()
    assert [one.request_id for one in house.run()] == ["b"]
    house.add("c")
    assert [one.request_id for one in house.engine.abort_all()] == ["c"]
    assert house.engine.step() is None


def test_a_pass_that_fails_costs_the_windows_in_it_and_no_others():
    house = House(places=1)
    house.add("a")
    house.add("b")
    house.ears.error = ValueError("bad")
    outputs = house.engine.step()
    assert outputs.failed == {"a": "the forward pass failed: ValueError: bad"}
    assert house.engine.num_failures_in_a_row == 1
    house.ears.error = None
    assert [one.request_id for one in house.run()] == ["b"]
    assert house.engine.num_failures_in_a_row == 0


def test_a_broken_group_is_passed_on():
    house = House()
    house.add("a")
    house.ears.error = GroupBroken("gone")
    with pytest.raises(GroupBroken):
        house.engine.step()
    with pytest.raises(GroupBroken):
        house.engine.verify(house.ears)


def test_numbers_that_are_not_finite_end_their_window_and_are_counted():
    house = House()
    house.add("a")
    house.ears.odd = (0,)
    outputs = house.engine.step()
    assert (outputs.failed, outputs.not_finite, outputs.windows) == ({"a": NOT_FINITE}, 1, [])
    assert house.engine.num_odd_in_a_row == 1
    assert house.engine.verify(house.ears) == ""
    assert house.engine.num_odd_in_a_row == 0
    house.ears.error = ValueError("other tokens")
    assert house.engine.verify(house.ears) == "ValueError: other tokens"


def test_a_window_that_cannot_be_read_ends_alone():
    house = House()
    house.add("a")
    house.engine.step()
    house.add("b")
    house.ears.unreadable = {1: "its file is gone"}
    assert house.engine.step().failed == {"b": "its file is gone"}
    house.ears.unreadable = {}
    assert [one.request_id for one in house.run()] == ["a"]


def test_the_load_tells_places_and_the_end_is_told_to_all():
    house = House(places=2)
    for name in "abc":
        house.add(name)
    outputs = house.engine.step()
    assert (outputs.running, outputs.waiting, outputs.kv_cache_usage) == (1, 2, 0.5)
    assert "1 of 2 places free" in repr(house.engine)
    assert house.engine.give_up("gone").failed == dict.fromkeys("abc", "gone")
    assert (house.engine.num_requests, house.engine.cached_blocks) == (0, ())


def test_a_place_that_is_lost_is_found():
    house = House()
    house.engine._free.pop()  # the fault that the check is for
    with pytest.raises(RuntimeError, match="of 2"):
        house.engine.check_integrity()


def test_nothing_is_under_way_between_steps_and_nothing_is_kept():
    engine = House().engine
    engine.forget_ranks()
    engine.forget_prefixes()
    assert list(engine.settle()) == []
    assert not engine.is_leaving("a")


def test_the_task_decides_which_engine_there_is():
    executor = Ears()
    report = make_report(num_gpu_blocks=4)
    settings = EngineSettings(model="/m")
    built = build_stepper(settings, report, (4, 0), executor, clock=ManualClock(), task="transcribe")
    assert isinstance(built, SpeechEngine)
