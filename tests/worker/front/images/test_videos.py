"""A front whose model sees videos: texts, sizes, positions and tensors are transformers'; what is refused, and how."""

import importlib
import json
from types import SimpleNamespace

import grpc
import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from tokenizers import Tokenizer
from transformers.models.qwen2_5_vl.processing_qwen2_5_vl import Qwen2_5_VLProcessor
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil, smart_resize
from transformers.models.qwen3_vl.processing_qwen3_vl import Qwen3VLProcessor

from dormouse_api.v1 import inference_pb2 as pb
from dormouse_worker.common.errors import ModelInvalid
from dormouse_worker.common.ipc import AddRequest
from dormouse_worker.files.video_files import TOKENS, VideoSpec, read_video
from dormouse_worker.front.images.films import FilmFacts, film_text, find_films, moments
from dormouse_worker.front.images.limits import ImageLimits
from dormouse_worker.front.images.placeholders import ImageFacts, WrongCount
from dormouse_worker.front.testing import VOCAB_SIZE, write_model
from dormouse_worker.pictures.decoding import BadPicture
from dormouse_worker.pictures.films import Films, FrameRule
from dormouse_worker.testing.fake_engine import Script
from tests.worker.front.images.kit import encoded, picture

QWEN3 = importlib.import_module("transformers.models.qwen3_vl.video_processing_qwen3_vl")
SETTINGS = {"temporal_patch_size": 2}
PLAIN = VideoSpec(9, TOKENS, SETTINGS)
SPED = VideoSpec(9, TOKENS, SETTINGS, speed=4)
TIMED = VideoSpec(9, TOKENS, SETTINGS, is_budgeted=True, is_timed=True)
STEP = ImageFacts({}, {"image_grid_thw": [1, 4, 6]})


def film(num_frames, fps=1.0):
    return FilmFacts([STEP] * -(-num_frames // 2), num_frames, fps)


@pytest.mark.parametrize(("num_frames", "fps"), [(1, 1.0), (2, 1.0), (5, 2.0), (6, 0.3), (8, 29.97)])
def test_what_stands_for_a_video_is_transformers_text(num_frames, fps):
    told = {
        "video_grid_thw": np.array([[-(-num_frames // 2), 4, 6]]),
        "video_metadata": [SimpleNamespace(fps=fps, frames_indices=list(range(num_frames)))],
    }
    own = SimpleNamespace(
        video_processor=SimpleNamespace(merge_size=2, temporal_patch_size=2),
        **TOKENS,
        _calculate_timestamps=lambda *args: Qwen3VLProcessor._calculate_timestamps(None, *args),
    )
    assert film_text(PLAIN, film(num_frames, fps)) == Qwen2_5_VLProcessor.replace_video_token(own, told, 0)
    assert film_text(TIMED, film(num_frames, fps)) == Qwen3VLProcessor.replace_video_token(own, told, 0)


@pytest.mark.parametrize("fps", [0.01, 0.3, 1.0, 2.0, 7.0, 23.976, 60.0, 240.0])
def test_steps_are_as_far_apart_as_transformers_says(fps):
    apart = 4 * torch.tensor([2 / fps])[0]
    theirs = (torch.arange(50) * apart).long().tolist()
    assert moments(SPED, film(100, fps)) == [*enumerate(theirs)]
    assert moments(PLAIN, film(6, fps)) == [(0, 0), (1, 1), (2, 2)]
    assert moments(TIMED, film(6, fps)) == [None] * 3


def test_steps_are_found_among_the_tokens():
    one, other = film(3), film(2)
    tokens = [1, *[9] * 12, 2, *[9] * 6]
    assert find_films(tokens, PLAIN, [one, other]) == [[[(1, 6)], [(7, 6)]], [[(14, 6)]]]
    with pytest.raises(WrongCount, match="18 tokens of steps of videos for 12 rows of 2 steps of videos"):
        find_films(tokens, PLAIN, [one])


SIZES = [(80, 60), (33, 200), (10, 9), (1920, 1080), (300, 40), (64, 64)]
LIMITS = [{"shortest_edge": 28 * 28 * 4, "longest_edge": 28 * 28 * 40}, {"shortest_edge": 1, "longest_edge": 10**8}]


@pytest.mark.parametrize("limits", LIMITS)
@pytest.mark.parametrize("num_frames", [2, 3, 9])
def test_frames_are_seen_as_large_as_transformers_sees_them(limits, num_frames):
    least, most = limits.values()
    for width, height in SIZES:
        of_each = smart_resize(height, width, 28, least, most)
        of_all = QWEN3.smart_resize(num_frames, height, width, 2, 28, least, most)
        rules = [FrameRule(28, 2, least, most, is_budgeted) for is_budgeted in (False, True)]
        seen = [rule.seen(width, height, num_frames) for rule in rules]
        assert seen == [of_each[::-1], of_all[::-1]], (width, height)


@pytest.mark.parametrize("num_frames", [2, 7, 60])
def test_the_cap_on_pixels_of_a_frame_is_transformers(num_frames):
    settings = {"cap_pixels_per_frame": True, "max_video_tokens": 40}
    size = {"shortest_edge": 1000, "longest_edge": 10**6}
    processor = SimpleNamespace(patch_size=14, merge_size=2, temporal_patch_size=2, size=size)
    of_each, of_all = (FrameRule.read(settings, processor, is_budgeted=is_budgeted) for is_budgeted in (False, True))
    own = SimpleNamespace(**vars(processor), **settings)
    theirs = QWEN3.Qwen3VLVideoProcessor.get_num_of_video_patches(own, num_frames, 300, 500)
    width, height = of_all.seen(500, 300, num_frames)
    assert -(-num_frames // 2) * (width // 14) * (height // 14) == theirs
    share = max(min(10**6, int(40 * 28 * 28 * 0.9) * 2 // num_frames), 1050)  # as Qwen2-VL's class says
    assert of_each.seen(500, 300, num_frames) == smart_resize(300, 500, 28, 1000, share)[::-1]


def test_what_no_frame_may_be_is_named():
    rule = FrameRule(28, 2, 1, 10**6, is_budgeted=True)
    with pytest.raises(BadPicture, match="its video has 1 frame; allowed: 2 or more"):
        rule.seen(80, 60, 1)
    with pytest.raises(BadPicture, match="30000 × 30 pixels; allowed: at most 200 times as long as wide"):
        rule.seen(30_000, 30, 2)


@pytest.mark.parametrize("num_frames", [2, 1])
def test_a_step_has_the_patches_that_transformers_makes_of_its_frames(num_frames):
    size = {"shortest_edge": 28 * 28 * 4, "longest_edge": 28 * 28 * 40}
    processor = Qwen2VLImageProcessorPil(size=size)
    films = Films(processor, {"settings": {**SETTINGS, "size": size}, "is_budgeted": False})
    frames = [picture(80, 60, seed=seed) for seed in range(num_frames)]
    made, _ = films.make_step(frames, num_frames)
    whole = [processor(images=[frame], return_tensors="np") for frame in frames]
    height, width = (14 * side for side in whole[0]["image_grid_thw"][0, 1:])
    seen = [np.asarray(frame.resize((width, height), processor.resample), np.float32) / 255 for frame in frames]
    mean, std = (np.array(one, np.float32) for one in (processor.image_mean, processor.image_std))
    video = torch.tensor(np.stack([(one - mean) / std for one in seen])).permute(0, 3, 1, 2)[None]
    theirs, *grid = QWEN3.Qwen3VLVideoProcessor.patchify(None, video, 14, 2, 2)
    np.testing.assert_allclose(made["pixel_values"], theirs[0].numpy(), atol=1e-6)
    assert made["image_grid_thw"].tolist() == [grid]


def test_files_say_how_videos_are_processed(tmp_path):
    config = {"model_type": "qwen2_5_vl", "video_token_id": 7, "vision_config": {"tokens_per_second": 2}}
    read = lambda **more: read_video(tmp_path, {**config, **more}, TOKENS)  # noqa: E731
    assert read() is None
    (tmp_path / "preprocessor_config.json").write_text('{"min_pixels": 3, "image_processor_type": "x"}')
    assert read().settings["min_pixels"] == 3
    assert read().settings.keys() == {"min_pixels", "size", "temporal_patch_size"}
    assert read().speed == 2
    assert read(model_type="qwen3_vl").settings["patch_size"] == 16
    assert "min_pixels" not in read(model_type="qwen3_vl").settings
    assert read(model_type="llava") is None
    assert read(video_token_id=None) is None
    (tmp_path / "video_preprocessor_config.json").write_text('{"temporal_patch_size": 3}')
    assert read().step == 3
    (tmp_path / "processor_config.json").write_text('{"video_processor": {"temporal_patch_size": 99}}')
    with pytest.raises(ModelInvalid, match="temporal_patch_size is '99'; known are 1 to 16"):
        read()
    (tmp_path / "processor_config.json").write_text('{"video_processor": {"patch_size": 2}}')
    with pytest.raises(ModelInvalid, match="tokens_per_second is no number"):
        read(vision_config={"tokens_per_second": "x"})


IMAGE, VIDEO, START, END = range(VOCAB_SIZE, VOCAB_SIZE + 4)
TEMPLATE = (
    "{% for m in messages %}{{ m.role[0] }}:{% for part in m.content %}{% if part.type in ('image', 'video') %}"
    "<|vision_start|><|{{ part.type }}_pad|><|vision_end|>{% else %}{{ part.text }}{% endif %}{% endfor %}{% endfor %}"
)
ROWS = 6  # of 32 × 48 pixels in patches of 8, 2 × 2 of them a row
PATIENT = ImageLimits(seconds=200.0, start_s=200.0, max_pixels=32 * 48 * 6)
SEES = Script(image_rows=1000, max_model_len=128)
FRAMES = [encoded(picture(48, 32, seed=seed), "JPEG") for seed in range(5)]


@pytest.fixture(scope="module")
def eyes_path(tmp_path_factory):
    """A Qwen2.5-VL without weights."""
    path = write_model(tmp_path_factory.mktemp("eyes"), template=TEMPLATE)
    config = json.loads((path / "config.json").read_text())
    own = {"model_type": "qwen2_5_vl", "vision_config": {"tokens_per_second": 2}, "vocab_size": END + 1}
    own |= {"image_token_id": IMAGE, "video_token_id": VIDEO}
    (path / "config.json").write_text(json.dumps({**config, **own}))
    tokenizer = Tokenizer.from_file(str(path / "tokenizer.json"))
    tokenizer.add_special_tokens(["<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>"])
    tokenizer.save(str(path / "tokenizer.json"))
    sizes = {"patch_size": 8, "min_pixels": 256, "max_pixels": 32 * 48, "image_processor_type": "Qwen2VLImageProcessor"}
    (path / "preprocessor_config.json").write_text(json.dumps(sizes))
    return path


@pytest.fixture
async def seeing(open_house, eyes_path):
    async with open_house(SEES, path=eyes_path, images=PATIENT) as house:
        await desk(house).warm()
        yield house


def desk(house):
    return house.front.worker.served.edition.model.senses.desk


def chat(*said):
    """Return a turn of text, images as bytes, and videos as (fps, frames)."""
    kinds = {str: "text", bytes: "image", tuple: "video"}
    made = [pb.Video(fps=one[0], frames=one[1]) if isinstance(one, tuple) else one for one in said]
    parts = [pb.ContentPart(**{kinds[type(one)]: part}) for one, part in zip(said, made, strict=True)]
    return pb.Chat(messages=[pb.ChatMessage(role="user", parts=parts)])


async def test_the_engine_gets_a_videos_steps_where_their_tokens_stand(seeing):
    messages = await seeing.collect(chat("a", (0.5, FRAMES), "b", FRAMES[0]))
    (add,) = [message for message in seeing.engine.engine.received if isinstance(message, AddRequest)]
    assert [image.spans for image in add.images] == [[(start, ROWS)] for start in (4, 10, 16, 25)]
    assert [image.moment for image in add.images] == [(0, 0), (1, 8), (2, 16), None]
    assert [image.grid for image in add.images] == [(1, 4, 6)] * 4
    assert add.prompt_token_ids.count(VIDEO) == 3 * ROWS
    usage = messages[-1].usage
    assert (usage.image_tokens, usage.video_tokens) == (ROWS, 3 * ROWS)
    tensors = [load_file(desk(seeing).folder / image.tensors) for image in add.images]
    assert [one["pixel_values"].shape for one in tensors] == [(24, 384)] * 4
    assert len({image.digest for image in add.images}) == 4
    assert desk(seeing).files.used_bytes == 0
    assert (await seeing.inference.GetModel(pb.GetModelRequest())).sees_videos
    await seeing.collect(chat((2, [*FRAMES[:2], *FRAMES[:2], FRAMES[4]])))
    assert desk(seeing).files.num_hits == 3, "at another place and another speed"


REFUSED = [
    (("<|video_pad|>", (1, FRAMES[:2])), "chat.messages is 2 places of <|video_pad|> for 1 videos"),
    (("<|video_pad|>", FRAMES[0]), "chat.messages is 1 places of <|video_pad|> for 0 videos"),
    (((1, [FRAMES[0], b"hush"]),), "video 1, frames 1 to 2, cannot be used: it cannot be decoded"),
    (((1, [FRAMES[0], encoded(picture(32, 48))]),), "its frames are 48 × 32, 32 × 48 pixels; allowed: all of one"),
    (((1, [*FRAMES[:2], encoded(picture(32, 48))]),), "frames 3 to 3, cannot be used: they are 32 × 48 pixels"),
    (((1, FRAMES + FRAMES),), "it is 48 × 32 pixels in 10 frames; allowed: 9216 together"),
    (((1, []),), "a video without frames; allowed: at least 1"),
    (((500, FRAMES[:1]),), "a video of 500 frames a second; allowed: 0.01 to 240"),
]


async def test_what_is_no_video_is_named_and_given_back(seeing):
    for said, words in REFUSED:
        error = await seeing.refusal(seeing.collect(chat(*said)))
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert words in error.details()
        assert "hush" not in error.details()
        assert desk(seeing).files.used_bytes == 0


async def test_a_video_that_never_fits_is_no_matter_of_patience(open_house, eyes_path):
    limits = ImageLimits(seconds=200.0, start_s=200.0, cache_bytes=80_000)  # a step takes 37,000
    async with open_house(SEES, path=eyes_path, images=limits) as house:
        await desk(house).warm()
        error = await house.refusal(house.collect(chat((1, FRAMES))))
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "video 1 cannot be used: its tensors take" in error.details()


async def test_a_model_that_sees_images_alone_refuses_videos(open_house, eyes_path, tmp_path):
    config = json.loads((eyes_path / "config.json").read_text())
    for file in eyes_path.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    del config["video_token_id"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    async with open_house(SEES, path=tmp_path, images=PATIENT) as house:
        error = await house.refusal(house.collect(chat((1, FRAMES))))
        assert "parts[0].video is set; allowed: text and images: this model sees no videos" in error.details()
        assert not (await house.inference.GetModel(pb.GetModelRequest())).sees_videos
