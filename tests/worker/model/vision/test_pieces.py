"""An encoder in pieces: the bits of the whole, wherever it stops; dropped at any time; errors told by who waits."""

import itertools
import threading

import msgspec
import pytest
import torch

from dormouse_worker.common.commands import TAGS
from dormouse_worker.engine.batch import Batch
from dormouse_worker.engine.images.pace import SHARE
from dormouse_worker.model.testing_vision import draw_picture
from dormouse_worker.model.vision.encoded import EncodedImages
from dormouse_worker.model.vision.pieces import encoder_pieces
from dormouse_worker.model.vision.placed import Placed
from dormouse_worker.model.vision.profile import most_between

NOTHING = Batch(is_fresh=False, released=(), swap_out=(), swap_in=(), new=(), sequences=())


def num_encoders():
    return sum(thread.name == "encoder" for thread in threading.enumerate())


def four_steps():
    """Compute something of four operations."""
    return torch.ones(2).add(1).mul(2).sub(1)


def test_it_stops_behind_each_operation_and_ends_with_the_last():
    pieces, stops = encoder_pieces(four_steps), 0
    while not pieces.advance(0):
        stops += 1
    assert stops >= 3
    assert pieces.finish().tolist() == [3, 3]
    assert repr(pieces) == "Pieces(done)"
    assert num_encoders() == 0


def test_it_goes_on_as_long_as_it_has_time():
    now = iter(range(100))
    pieces = encoder_pieces(four_steps, lambda: next(now))
    assert not pieces.advance(2)
    assert next(now) == 3  # asked when it began, and behind two operations
    assert pieces.finish().tolist() == [3, 3]


def test_what_it_raises_is_told_by_who_waits_for_the_result():
    pieces = encoder_pieces(lambda: torch.ones(2).add(1).reshape(3))
    while not pieces.advance(0):
        pass
    with pytest.raises(RuntimeError, match="shape"):
        pieces.finish()


@pytest.mark.parametrize("num_steps", [0, 1, 100])
def test_it_can_be_left_before_meanwhile_and_after(num_steps):
    pieces = encoder_pieces(four_steps)
    for _ in range(num_steps):
        pieces.advance(0)
    pieces.leave()
    pieces.leave()
    assert num_encoders() == 0


@pytest.mark.parametrize("family", ["llava", "qwen2_5_vl", "smolvlm"])
def test_rows_made_in_pieces_have_the_bits_of_the_whole(seen, family):
    tower, image = seen(family)
    held = EncodedImages(tower, itertools.count().__next__)
    batch, num_passes = msgspec.structs.replace(NOTHING, ahead=image), 1
    while not (news := held.update(batch)).encoded:
        num_passes += 1
    assert news.encoded == (image.digest,)
    assert num_passes > 10
    (rows,) = held.find([Placed(0, image.digest, 0, image.num_rows)])
    assert torch.equal(rows.rows, tower.encode(image))


class Clock:
    """A clock that passes and pieces move on."""

    def __init__(self):
        self.now_s = 0.0

    def __call__(self):
        return self.now_s


def test_it_gets_a_share_of_the_time_of_passes(seen):
    tower, image = seen("llava")
    clock = Clock()
    compute, stops = tower.encode, []

    class Slow(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            clock.now_s += 1
            return function(*args, **(kwargs or {}))

    class SlowTower:
        device = tower.device

        def encode(self, image):
            with Slow():
                return compute(image)

    held = EncodedImages(SlowTower(), clock)
    batch = msgspec.structs.replace(NOTHING, ahead=image)
    while not held.update(batch).encoded:
        stops.append(clock.now_s)
        clock.now_s += 10  # a pass
    spent = stops[-1] - 10 * (len(stops) - 1)
    assert spent == pytest.approx(SHARE * 10 * (len(stops) - 1), abs=5)


def test_it_rests_beside_rows_of_prompts_with_images_and_that_time_does_not_count(seen):
    tower, image = seen("llava")
    clock = Clock()
    held = EncodedImages(tower, clock)
    resting = msgspec.structs.replace(NOTHING, ahead=image, num_image_rows=1)
    held.update(resting)
    assert repr(held) == "EncodedImages(0 images)"
    held.update(msgspec.structs.replace(NOTHING, ahead=image))
    clock.now_s += 1000
    held.update(resting)
    assert held._ahead.stopped_s == clock.now_s
    assert held._ahead.credit_s == 0
    held.update(msgspec.structs.replace(resting, ahead=None))
    assert repr(held) == "EncodedImages(0 images)"


def test_where_no_processor_computes_an_image_is_encoded_whole(seen):
    tower, image = seen("llava")

    class Device:
        device = torch.device("meta")

        def encode(self, image):
            assert threading.current_thread() is threading.main_thread()
            return tower.encode(image)

    assert EncodedImages(Device()).update(msgspec.structs.replace(NOTHING, ahead=image)).encoded == (image.digest,)


def test_a_pass_that_does_not_name_it_drops_it(seen):
    tower, image = seen("llava")
    held = EncodedImages(tower)
    held.update(msgspec.structs.replace(NOTHING, ahead=image))
    held.update(msgspec.structs.replace(NOTHING, ahead=image))
    assert repr(held) == "EncodedImages(0 images, one under way)"
    held.update(NOTHING)
    assert repr(held) == "EncodedImages(0 images)"
    assert num_encoders() == 0


def test_a_pass_that_needs_it_makes_the_rest(seen):
    tower, image = seen("llava")
    held = EncodedImages(tower)
    held.update(msgspec.structs.replace(NOTHING, ahead=image))
    held.update(msgspec.structs.replace(NOTHING, ahead=image))
    assert held.update(msgspec.structs.replace(NOTHING, encode=(image,))).unreadable == {}
    assert repr(held) == "EncodedImages(1 images)"
    (rows,) = held.find([Placed(0, image.digest, 0, image.num_rows)])
    assert torch.equal(rows.rows, tower.encode(image))


def test_an_encoder_that_raises_in_the_middle_tells_why(seen):
    tower, image = seen("llava")
    held = EncodedImages(tower, itertools.count().__next__)
    batch = msgspec.structs.replace(NOTHING, ahead=msgspec.structs.replace(image, num_rows=7))
    while not (news := held.update(batch)).unreadable:
        pass
    assert news.encoded == ()
    assert "the encoder makes 16 rows of it, and the prompt has 7" in news.unreadable[image.digest]


def seer_in_the_middle(make_seer, **settings):
    """Return an engine in which text decodes while an image is half encoded."""
    seer = make_seer("llava", **settings)
    seer.add("text", [[1, 2, 3]], max_tokens=60)
    seer.engine.step()
    seer.add("seeing", [[4], draw_picture("llava", 1), [5]])
    for _ in range(3):
        seer.engine.step()
    assert num_encoders() == 1
    return seer


def test_tokens_beside_text_are_those_of_transformers(make_seer, said):
    seer = seer_in_the_middle(make_seer)
    tokens = []
    while (outputs := seer.engine.step()) is not None:
        tokens += [token for output in outputs.outputs if output.request_id == "seeing" for token in output.token_ids]
    assert tokens == said("llava", [[4], draw_picture("llava", 1), [5]])
    assert num_encoders() == 0


@pytest.mark.parametrize("level", [1, 2])
def test_a_sleep_drops_what_is_half_encoded(make_seer, said, level):
    seer = seer_in_the_middle(make_seer)
    seer.engine.abort_all()
    seer.worker.sleep(level, TAGS)
    assert num_encoders() == 0
    seer.engine.forget_prefixes()
    seer.worker.wake_up(TAGS)
    seer.engine.forget_ranks()
    parts = [[4], draw_picture("llava", 1), [5]]
    assert seer.ask({"a": parts}) == {"a": said("llava", parts)}


def test_the_end_of_a_worker_drops_it(make_seer):
    seer_in_the_middle(make_seer).worker.shutdown()
    assert num_encoders() == 0


class Resident:
    """A meter of a process that grows by a byte whenever it is asked, up to some, and shrinks then."""

    def __init__(self, most):
        self.most, self.num_asked = most, 0

    def resident_bytes(self):
        self.num_asked += 1
        return min(self.num_asked, max(0, 2 * self.most - self.num_asked))


def test_the_profile_keeps_as_much_as_an_image_takes_where_it_stops(seen):
    tower, _ = seen("llava")
    assert most_between(tower, Resident(20)) == 19  # more than when it began
