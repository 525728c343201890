"""Encoded images over a sleep: kept or dropped, as the settings and the level say, and forgotten by order."""

import pytest

from dormouse_worker.common.commands import KV_CACHE, TAGS, WEIGHTS, Sleep
from dormouse_worker.common.errors import InsufficientMemory
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.engine.resting import forget_images
from dormouse_worker.engine.sleeping_parts import SleepingParts
from dormouse_worker.engine.status import StatusTeller
from dormouse_worker.engine.testing import ManualClock
from tests.worker.engine.images.gallery import Gallery, digest_of


class Sleeper(Gallery):
    """A gallery that sleeps by command."""

    def __init__(self, folder, *, keeps=True, tokens=64, **fields):
        super().__init__(folder, tokens=tokens, **fields)
        self.executor.keeps_images = keeps
        settings = EngineSettings(model="m", keep_encoder_cache=keeps)
        self.parts = SleepingParts(self.executor, StatusTeller(lambda _: None), ManualClock(), settings)

    def sleep(self, level=1, tags=TAGS):
        self.parts.sleep(Sleep(level, tags), self.engine)

    def wake(self, tags=TAGS):
        if self.parts.wake_up(tags, self.engine):
            self.engine.forget_ranks()

    def ask(self, *numbers):
        """Ask about these images, in prompts that nobody knows; return which were encoded for it."""
        before = len(self.encoded)
        for number in numbers:
            name = f"{len(self.executor.batches)}-{number}"
            self.add(name, [[len(self.executor.batches) + 20], (number, 6), [2, 3]])
        self.run()
        return self.encoded[before:]

    @property
    def last_known(self):
        """Return which images the last fresh batch let the rank keep."""
        return next(batch for batch in reversed(self.executor.batches) if batch.is_fresh).known_images


@pytest.mark.parametrize("tags", [TAGS, (WEIGHTS,), (KV_CACHE,)])
@pytest.mark.parametrize(
    ("keeps", "level", "encoded"), [(True, 1, []), (False, 1, [1, 2]), (True, 2, [1, 2]), (False, 2, [1, 2])]
)
def test_a_second_question_encodes_nothing_where_images_were_kept(tmp_path, keeps, level, encoded, tags):
    sleeper = Sleeper(tmp_path, keeps=keeps)
    assert sleeper.ask(1, 2) == [1, 2]
    sleeper.sleep(level, tags)
    sleeper.wake()
    assert sleeper.ask(1, 2) == encoded
    assert sleeper.last_known == (() if encoded else (digest_of(1), digest_of(2)))


def test_they_outlive_one_sleep_after_another_also_where_nobody_asks_between(tmp_path):
    sleeper = Sleeper(tmp_path)
    sleeper.ask(1)
    for _ in range(2):
        sleeper.sleep()
        sleeper.wake()
    assert sleeper.ask(1) == []


@pytest.mark.parametrize("deeper", [TAGS, (WEIGHTS,), (KV_CACHE,)])
def test_a_deeper_sleep_drops_what_a_light_one_kept(tmp_path, deeper):
    sleeper = Sleeper(tmp_path)
    sleeper.ask(1)
    sleeper.sleep(1)
    sleeper.sleep(2, deeper)
    sleeper.wake()
    assert sleeper.ask(1) == [1]


def test_parts_that_wake_one_after_the_other_bring_them_back(tmp_path):
    sleeper = Sleeper(tmp_path)
    sleeper.ask(1)
    sleeper.sleep()
    sleeper.wake((WEIGHTS,))
    sleeper.wake((KV_CACHE,))
    assert sleeper.ask(1) == []


def test_a_refused_sleep_and_a_refused_wake_lose_none(tmp_path):
    sleeper = Sleeper(tmp_path)
    sleeper.ask(1)
    sleeper.executor.fail_once["sleep"] = InsufficientMemory("no host memory")
    with pytest.raises(InsufficientMemory):
        sleeper.sleep()
    assert sleeper.ask(1) == []
    sleeper.sleep()
    sleeper.executor.fail_once["wake_up"] = InsufficientMemory("4096 bytes are missing")
    with pytest.raises(InsufficientMemory):
        sleeper.wake()
    sleeper.wake()
    assert sleeper.ask(1) == []


def test_what_made_way_before_the_sleep_is_not_known_after_it(tmp_path):
    sleeper = Sleeper(tmp_path, rows=12)
    sleeper.ask(1, 2, 3)
    sleeper.sleep()
    sleeper.wake()
    assert sleeper.ask(3, 2) == []
    assert sleeper.ask(1) == [1]


def test_a_failed_pass_after_the_wake_forgets_them(tmp_path):
    sleeper = Sleeper(tmp_path)
    sleeper.ask(1)
    sleeper.sleep()
    sleeper.wake()
    sleeper.executor.fail_once["execute_model"] = RuntimeError("broken")
    sleeper.add("a", [[5], (1, 6)])
    assert set(sleeper.engine.step().failed) == {"a"}
    sleeper.expected.clear()
    assert sleeper.ask(1) == [1]


@pytest.mark.parametrize("sleeps", [True, False])
def test_an_order_forgets_them_at_once_where_nobody_runs(tmp_path, sleeps):
    sleeper = Sleeper(tmp_path)
    sleeper.ask(1)
    if sleeps:
        sleeper.sleep()
    forget_images(sleeper.engine, sleeper.executor)
    assert sleeper.executor.encoder.images == {}
    sleeper.wake()
    assert sleeper.ask(1) == [1]


def test_an_order_leaves_what_a_running_request_needs(tmp_path):
    sleeper = Sleeper(tmp_path, tokens=7)
    sleeper.ask(1)
    sleeper.add("a", [(2, 9), [1]])
    sleeper.engine.step()
    forget_images(sleeper.engine, sleeper.executor)
    assert "forget_images" not in sleeper.executor.calls
    sleeper.run()
    assert set(sleeper.executor.encoder.images) == {digest_of(2)}


def test_where_there_is_no_engine_or_it_reads_no_images_there_is_nothing_to_forget(tmp_path):
    forget_images(None, Gallery(tmp_path).executor)
    blind = Gallery(tmp_path, rows=0)
    forget_images(blind.engine, blind.executor)
    assert blind.executor.calls == []
