"""A front whose model hears: texts, tokens and features are transformers'; what is refused, and how."""

import json

import grpc
import numpy as np
import pytest
from safetensors.numpy import load_file

from dormouse_api.status import CallError
from dormouse_api.v1 import inference_pb2 as pb
from dormouse_worker.common.ipc import AddRequest
from dormouse_worker.front.images.ears import SoundDesk
from dormouse_worker.front.images.held import HeldImages
from dormouse_worker.front.images.limits import ImageLimits
from dormouse_worker.front.speech.limits import AudioLimits
from dormouse_worker.front.testing import VOCAB_SIZE, write_model
from dormouse_worker.model.testing_hearing import MELS, POSITIONS
from dormouse_worker.testing.fake_engine import Script
from tests.worker.front.images.sounds import RATE_HZ, TEMPLATE, TOKENS, give_ears, heard_by_transformers, noise, written

AUDIO = VOCAB_SIZE  # the first of them
HEARS = Script(image_rows=1000, max_model_len=512)
PATIENT = AudioLimits(seconds=200.0, start_s=200.0)
LONG, SHORT = noise(15_999), noise(4_000, seed=1)


@pytest.fixture(scope="module")
def ears_path(tmp_path_factory):
    """A Qwen2-Audio without weights, whose encoder takes one second."""
    path = write_model(tmp_path_factory.mktemp("ears"), template=TEMPLATE)
    config = json.loads((path / "config.json").read_text())
    own = {"model_type": "qwen2_audio", "audio_config": {"num_mel_bins": MELS, "max_source_positions": POSITIONS}}
    own |= {"audio_token_index": AUDIO, "vocab_size": VOCAB_SIZE + len(TOKENS), "max_position_embeddings": 512}
    (path / "config.json").write_text(json.dumps({**config, **own}))
    return give_ears(path)


@pytest.fixture
async def hearing(open_house, ears_path):
    async with open_house(HEARS, path=ears_path, sounds=PATIENT) as house:
        await desk(house).warm()
        yield house


def desk(house):
    return house.front.worker.served.edition.model.senses.desk


def chat(*said):
    """Return a turn of text, and sounds as bytes."""
    kinds = {str: "text", bytes: "audio"}
    parts = [pb.ContentPart(**{kinds[type(one)]: one}) for one in said]
    return pb.Chat(messages=[pb.ChatMessage(role="user", parts=parts)])


def adds(house):
    return [message for message in house.engine.engine.received if isinstance(message, AddRequest)]


async def test_the_engine_gets_what_transformers_makes_of_text_and_sounds(hearing, ears_path):
    messages = await hearing.collect(chat(written(LONG), "What?", written(SHORT)))
    (add,) = adds(hearing)
    content = [{"type": "audio"}, {"type": "text", "text": "What?"}, {"type": "audio"}]
    wanted = heard_by_transformers(ears_path, content, [LONG, SHORT])
    assert add.prompt_token_ids == wanted["input_ids"][0].tolist()
    for number, sound in enumerate(add.images):
        made = load_file(desk(hearing).folder / sound.tensors)
        np.testing.assert_allclose(made["input_features"][0], wanted["input_features"][number], atol=2e-5)
        np.testing.assert_array_equal(made["feature_attention_mask"][0], wanted["feature_attention_mask"][number])
        assert {
            add.prompt_token_ids[place] for start, count in sound.spans for place in range(start, start + count)
        } == {AUDIO}
    assert [sound.num_rows for sound in add.images] == [25, 6]
    usage = messages[-1].usage
    assert (usage.audio_tokens, usage.image_tokens, usage.video_tokens) == (31, 0, 0)
    told = await hearing.inference.GetModel(pb.GetModelRequest())
    assert (told.hears_audio, told.sees_images, told.sees_videos) == (True, False, False)
    assert desk(hearing).files.used_bytes == 0


async def test_a_sound_has_one_digest_in_every_container_and_is_processed_once(hearing):
    await hearing.collect(chat(written(SHORT)))
    await hearing.collect(chat("again", written(SHORT)))
    assert desk(hearing).files.num_hits == 1
    await hearing.collect(chat(written(SHORT, "FLAC"), written(LONG)))
    one, again, packed, other = (sound.digest for add in adds(hearing) for sound in add.images)
    assert one == again == packed != other


REFUSED = [
    (("<|AUDIO|>", written(SHORT)), "chat.messages is 2 places of <|AUDIO|> for 1 sounds"),
    ((written(SHORT), b"hush"), "sound 2 cannot be used: it cannot be decoded"),
    ((written(noise(RATE_HZ + 1600)),), "it lasts 1.1 seconds; allowed: 1 seconds (what this model hears at once)"),
    ((written(noise(320)),), "it has 320 samples at 16 kHz; allowed: at least 321"),
    ((written(SHORT, "AIFF"),), "it is of the kind AIFF; allowed are wav, flac, ogg, mp3"),
    ((b"",), "an empty sound; allowed: the bytes of a file"),
    ((written(SHORT),) * 17, "17 sounds; allowed: at most 16"),
]


async def test_what_cannot_be_heard_is_named_and_given_back(hearing):
    for said, words in REFUSED:
        error = await hearing.refusal(hearing.collect(chat(*said)))
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert words in error.details()
        assert "hush" not in error.details()
        assert (adds(hearing), desk(hearing).files.used_bytes) == ([], 0)


async def test_a_sound_that_the_engine_has_no_room_for_is_named(open_house, ears_path):
    async with open_house(Script(image_rows=5, max_model_len=512), path=ears_path, sounds=PATIENT) as house:
        error = await house.refusal(house.collect(chat(written(SHORT))))
        assert "chat.messages: sound 1 is 6 tokens; allowed: at most 5" in error.details()


async def test_ears_are_no_eyes(hearing):
    image = pb.Chat(messages=[pb.ChatMessage(role="user", parts=[pb.ContentPart(image=b"x")])])
    error = await hearing.refusal(hearing.collect(image))
    assert "parts[0].image is set; allowed: text and audio: this model sees nothing" in error.details()


async def test_where_there_is_no_room_it_is_sounds_that_take_it(hearing, tmp_path):
    """Both limits of a front, of what waits and of what is in use, are told of sounds."""
    sound, held = written(SHORT), HeldImages()
    limits = ImageLimits(waiting_bytes=len(sound), cache_bytes=60_000)
    ears = SoundDesk(desk(hearing).spec, limits, PATIENT, folder=tmp_path)
    with pytest.raises(CallError, match=r"^sounds of 0 bytes wait already"):
        await ears.hold(held, [sound, sound], caller="", salt="")
    await ears.hold(held, [sound], caller="", salt="")
    ears.files.budget_bytes = ears.files.used_bytes
    with pytest.raises(CallError, match=r"^sounds of \d+ bytes are in use; the limit is \d+ bytes"):
        await ears.hold(held, [written(noise(4_000, seed=2))], caller="", salt="")
    held.release()
    ears.close()
