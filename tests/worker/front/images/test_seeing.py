"""A front whose model sees: what the engine gets of images, what callers are told, and what stays behind."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import grpc
import pytest
from safetensors.numpy import load_file
from tokenizers import Tokenizer

from dormouse_api.status import CONTEXT_LENGTH_EXCEEDED, read_details
from dormouse_api.v1 import inference_pb2 as pb
from dormouse_worker.common.ipc import AddRequest
from dormouse_worker.front.images.limits import ImageLimits
from dormouse_worker.front.testing import VOCAB_SIZE, write_model
from dormouse_worker.testing.fake_engine import Script
from tests.objects import num_objects
from tests.waiting import until
from tests.worker.front.images.kit import encoded, picture

Code = grpc.StatusCode
IMAGE = VOCAB_SIZE  # the token
TEMPLATE = (
    "{% for m in messages %}{{ m.role[0] }}:{% for part in m.content %}"
    "{% if part.type == 'image' %}<image>{% else %}{{ part.text }}{% endif %}{% endfor %}{% endfor %}"
)
ROWS = 16  # 32 × 32 pixels in patches of 8
PATIENT = ImageLimits(seconds=200.0, start_s=200.0)
SEES = Script(image_rows=1000, max_model_len=128)
ONE, OTHER = encoded(picture(40, 30)), encoded(picture(40, 30, seed=1))


@pytest.fixture(scope="module")
def eyes_path(tmp_path_factory):
    """A LLaVA without weights."""
    path = write_model(tmp_path_factory.mktemp("eyes"), template=TEMPLATE)
    config = json.loads((path / "config.json").read_text())
    own = {"model_type": "llava", "vision_config": {"patch_size": 8}, "image_token_id": IMAGE, "vocab_size": IMAGE + 1}
    (path / "config.json").write_text(json.dumps({**config, **own}))
    tokenizer = Tokenizer.from_file(str(path / "tokenizer.json"))
    tokenizer.add_special_tokens(["<image>"])
    tokenizer.save(str(path / "tokenizer.json"))
    strategy = {"vision_feature_select_strategy": "default", "num_additional_image_tokens": 1}
    (path / "processor_config.json").write_text(json.dumps(strategy))
    sizes = {"size": {"shortest_edge": 32}, "crop_size": {"height": 32, "width": 32}}
    kind = {"image_processor_type": "CLIPImageProcessor"}
    (path / "preprocessor_config.json").write_text(json.dumps({**sizes, **kind}))
    return path


@pytest.fixture
async def seeing(open_house, eyes_path):
    async with open_house(SEES, path=eyes_path, images=PATIENT) as house:
        await desk(house).warm()  # calls have a time limit, and starting takes long on a busy machine
        yield house


def part(said):
    return pb.ContentPart(text=said) if isinstance(said, str) else pb.ContentPart(image=said)


def chat(*said, **more):
    return pb.Chat(messages=[pb.ChatMessage(role="user", parts=map(part, said))], **more)


def desk(house):
    return house.front.worker.served.edition.model.senses.desk


def adds(house):
    return [message for message in house.engine.engine.received if isinstance(message, AddRequest)]


async def test_the_engine_gets_each_image_where_its_tokens_stand(seeing):
    messages = await seeing.collect(chat("a", ONE, "b", OTHER))
    (add,) = adds(seeing)
    assert [image.spans for image in add.images] == [[(3, ROWS)], [(4 + ROWS, ROWS)]]
    assert all(add.prompt_token_ids[place] == IMAGE for place in (3, 2 + ROWS, 4 + ROWS, 3 + 2 * ROWS))
    assert len(add.prompt_token_ids) == 4 + 2 * ROWS
    folder = desk(seeing).folder
    for image in add.images:
        assert Path(image.tensors).name == image.tensors
        assert (folder / image.tensors).stat().st_size == image.num_bytes
        assert load_file(folder / image.tensors)["pixel_values"].shape == (1, 3, 32, 32)
    assert len({image.digest for image in add.images}) == 2
    usage = messages[-1].usage
    assert (usage.prompt_tokens, usage.image_tokens) == (4 + 2 * ROWS, 2 * ROWS)
    assert desk(seeing).files.used_bytes == 0


async def test_an_image_has_one_digest_in_every_request_and_is_processed_once(seeing):
    await seeing.collect(chat(ONE))
    await seeing.collect(chat("again", ONE), n=3)
    first, *others = (add.images[0].digest for add in adds(seeing))
    assert set(others) == {first}
    assert desk(seeing).files.num_hits == 1


async def test_a_forgotten_image_is_processed_anew(seeing):
    await seeing.collect(chat(ONE))
    await seeing.operate("ResetMultimodalCache")
    assert desk(seeing).files.num_bytes == 0
    await seeing.collect(chat(ONE))
    assert desk(seeing).files.num_hits == 0


async def test_text_alone_is_rendered_as_the_models_processor_would(seeing):
    for asked in (chat("hi"), pb.Chat(messages=[pb.ChatMessage(role="user", content="hi")])):
        await seeing.collect(asked)
    one, other = (add.prompt_token_ids for add in adds(seeing))
    assert one == other == (await seeing.tokenize("u:hi")).token_ids


async def test_tokens_of_images_are_counted(seeing):
    answer = await seeing.inference.Tokenize(pb.TokenizeRequest(chat=chat("a", ONE)))
    assert list(answer.token_ids).count(IMAGE) == ROWS
    assert answer.rendered_text == "u:a" + "<image>" * ROWS
    assert (await seeing.inference.GetModel(pb.GetModelRequest())).sees_images
    assert desk(seeing).files.used_bytes == 0


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (("<image>", ONE), "chat.messages is 2 places of <image> for 1 images"),
        ((ONE, b"hush"), "image 2 cannot be used: it cannot be decoded"),
        ((ONE,) * 8, "at most|below the model length 128"),
    ],
)
async def test_what_cannot_be_seen_is_named_and_given_back(seeing, said, words):
    error = await seeing.refusal(seeing.collect(chat(*said)))
    assert error.code() is Code.INVALID_ARGUMENT
    assert any(one in error.details() for one in words.split("|"))
    assert "hush" not in error.details()
    assert (adds(seeing), desk(seeing).files.used_bytes) == ([], 0)


async def test_eyes_are_no_ears(seeing):
    sound = pb.Chat(messages=[pb.ChatMessage(role="user", parts=[pb.ContentPart(audio=b"x")])])
    error = await seeing.refusal(seeing.collect(sound))
    assert "parts[0].audio is set; allowed: text and images: this model hears nothing" in error.details()


async def test_a_prompt_that_its_images_make_too_long_says_so_in_a_word_for_programs(seeing):
    error = await seeing.refusal(seeing.collect(chat(*[ONE] * 8)))
    details = dict(error.trailing_metadata())["grpc-status-details-bin"]
    assert read_details(error.code(), error.details(), details).reason == CONTEXT_LENGTH_EXCEEDED


async def test_who_leaves_gives_his_images_back(seeing):
    seeing.engine.is_paused = True
    call = seeing.generate(chat(ONE))
    await seeing.engine.until_received(lambda message: isinstance(message, AddRequest))
    assert desk(seeing).files.used_bytes > 0
    call.cancel()
    await until(lambda: desk(seeing).files.used_bytes == 0)


async def test_a_model_whose_engine_reads_no_images_refuses_them(open_house, eyes_path):
    async with open_house(path=eyes_path) as house:
        error = await house.refusal(house.collect(chat(ONE)))
        assert "this model sees no images" in error.details()
        assert not (await house.inference.GetModel(pb.GetModelRequest())).sees_images


async def test_an_image_that_the_engine_has_no_room_for_is_named(open_house, eyes_path):
    async with open_house(Script(image_rows=ROWS - 1, max_model_len=128), path=eyes_path, images=PATIENT) as house:
        error = await house.refusal(house.collect(chat(ONE)))
        assert f"image 1 is {ROWS} tokens; allowed: at most {ROWS - 1}" in error.details()


async def test_engines_are_told_where_images_lie(seeing):
    assert [settings.image_dir for settings in seeing.started] == [str(desk(seeing).folder)]


async def test_nothing_is_left_when_the_front_ends(open_house, eyes_path):
    async with open_house(SEES, path=eyes_path, images=PATIENT) as house:
        await house.collect(chat(ONE))
        folder = desk(house).folder
        assert any(folder.iterdir())
    assert not folder.exists()


ROUND = 25  # images


async def objects_behind(house, first):
    """Ask about one image after another; return how many objects there are then, of which the fake keeps none."""
    for number in range(first, first + ROUND):
        await house.collect(chat("a", encoded(picture(40, 30, seed=number))))
        house.engine.engine.received.clear()
    return num_objects()


async def test_an_image_that_is_gone_leaves_no_object_behind(open_house, eyes_path):
    """Once the room for files is full, a front has as many objects behind each further image."""
    async with open_house(SEES, path=eyes_path, images=replace(PATIENT, cache_bytes=100_000)) as house:
        await desk(house).warm()
        warm, then = [await objects_behind(house, number * ROUND) for number in range(4)][2:]
        assert desk(house).files.num_bytes <= 100_000
    assert then - warm < ROUND, "not one of each image"
