"""From a request to what it will cost and with what its prompt begins. Pure, and cheap for the longest prompt.

The gateway has no tokenizer: what is no list of token ids is estimated from its bytes. Only the beginning of a prompt
is hashed. Of a chat that is what stays the same from turn to turn: the tools and the first messages, up to the user's
first. The cache salt is part of the hash, as workers share no block between salts.
"""

from __future__ import annotations

from array import array
from hashlib import blake2b

from dormouse_api.images import frames_of, images_of, sounds_of
from dormouse_api.v1 import inference_pb2 as pb
from dormouse_gateway.routing.policy import NOTHING, Demand

BYTES_PER_TOKEN = 4  # of English text and of code, about
ASSUMED_OUTPUT_TOKENS = 256  # of a request that names no limit
MAX_OUTPUT_TOKENS = 4096  # counted for a choice: limits are often set far beyond what is said
MAX_CHOICES = 16  # as many as workers allow
PREFIX_TOKENS = 256  # what prompts must share to count as beginning alike, unless they are shorter: 16 blocks of 16
PREFIX_CHARS = PREFIX_TOKENS * BYTES_PER_TOKEN
MIN_PREFIX_TOKENS = 16  # less is no full block of a worker's cache
MIN_PREFIX_CHARS = MIN_PREFIX_TOKENS * BYTES_PER_TOKEN
TOKENS_PER_IMAGE = 576  # LLaVA's; others make from 64 to some thousand of one
TOKENS_PER_SOUND = 250  # of ten seconds by Qwen2-Audio
TOKENS_PER_FRAME = 128  # of Qwen's kinds, by their defaults from 64 to 384
AUDIO_BYTES_PER_TOKEN = 4_000  # of what is heard: a second of plain sound has 32,000 bytes and says four words or so
IMAGE_CHARS = MIN_PREFIX_CHARS  # of what stands for an image in a beginning: one alone is worth finding again


def read_demand(request: object, *, num_bytes: int, salt: str, adapter: str = "") -> Demand:
    """Return what the request costs; its whole message has `num_bytes`. What reads no prompt costs nothing."""
    if isinstance(request, pb.DecideRequest):
        return _demand_of_questions(request, num_bytes, salt, adapter)
    if isinstance(request, pb.TranscribeRequest):
        return _demand_of_sound(num_bytes)
    if not isinstance(request, pb.GenerateRequest):
        return NOTHING
    params = request.sampling_params
    is_counted = request.WhichOneof("prompt") == "token_ids"
    return Demand(
        prompt_tokens=len(request.token_ids.ids) if is_counted else _estimate(request.chat, num_bytes),
        output_tokens=min(params.max_tokens or ASSUMED_OUTPUT_TOKENS, MAX_OUTPUT_TOKENS),
        num_choices=min(params.n or 1, MAX_CHOICES),
        tokens_per_message=request.stream_interval or 1,
        prefix=_hashed(_beginning(request), salt),
        adapter=_hashed(adapter.encode(), ""),
    )


def _demand_of_sound(num_bytes: int) -> Demand:
    """Return what a sound costs, by its bytes. No two begin alike."""
    return Demand(
        prompt_tokens=0,
        output_tokens=min(num_bytes // AUDIO_BYTES_PER_TOKEN, MAX_OUTPUT_TOKENS),
        num_choices=1,
        tokens_per_message=1,
        prefix=None,
        adapter=None,
    )


def _estimate(chat: pb.Chat, num_bytes: int) -> int:
    images, frames, sounds = ([*map(len, of(chat))] for of in (images_of, frames_of, sounds_of))
    text = (num_bytes - sum(images) - sum(frames) - sum(sounds)) // BYTES_PER_TOKEN
    of_parts = len(images) * TOKENS_PER_IMAGE + len(frames) * TOKENS_PER_FRAME + len(sounds) * TOKENS_PER_SOUND
    return text + of_parts


def _demand_of_questions(request: pb.DecideRequest, num_bytes: int, salt: str, adapter: str) -> Demand:
    """Return what a state and its questions cost: each is read once, and nothing is written."""
    text = request.text[:PREFIX_CHARS] if request.HasField("text") else _beginning_of_chat(request.chat)
    beginning = f"{request.prompt_cache_key}\0{text}".encode() if len(text) >= MIN_PREFIX_CHARS else b""
    return Demand(
        prompt_tokens=num_bytes // BYTES_PER_TOKEN,
        output_tokens=0,
        num_choices=1,
        tokens_per_message=1,
        prefix=_hashed(beginning, salt),
        adapter=_hashed(adapter.encode(), ""),
    )


def _beginning(request: pb.GenerateRequest) -> bytes:
    """Return what prompts that begin alike have in common; empty if it is too short to matter."""
    kind = request.WhichOneof("prompt")
    if kind == "token_ids":
        first = request.token_ids.ids[:PREFIX_TOKENS]
        return array("I", first).tobytes() if len(first) >= MIN_PREFIX_TOKENS else b""
    text = _beginning_of_chat(request.chat) if kind == "chat" else request.text[:PREFIX_CHARS]
    return text.encode() if len(text) >= MIN_PREFIX_CHARS else b""


def _beginning_of_chat(chat: pb.Chat) -> str:
    """Return tools and messages up to the user's first, and as many more as it takes to be long enough."""
    text = ""
    for tool in chat.tools:
        text += tool.SerializeToString(deterministic=True).decode("latin-1")
        if len(text) >= PREFIX_CHARS:
            return text[:PREFIX_CHARS]
    has_asked = False
    for message in chat.messages:
        text += f"\0{message.role}\0{message.content[:PREFIX_CHARS]}{_beginning_of_parts(message)}"
        has_asked = has_asked or message.role == "user"
        if len(text) >= (MIN_PREFIX_CHARS if has_asked else PREFIX_CHARS):
            break
    return text[:PREFIX_CHARS]


def _beginning_of_parts(message: pb.ChatMessage) -> str:
    """Return words, and what tells images and videos apart, as many as count: one is long enough for what follows."""
    text = ""
    for part in message.parts:
        if len(text) >= PREFIX_CHARS:
            break
        text += f"\0{_beginning_of_part(part)}"
    return text


def _beginning_of_part(part: pb.ContentPart) -> str:
    """Return words; of an image, a sound or a video what tells it apart, of a video by where it begins."""
    match part.WhichOneof("part"):
        case "image":
            file = part.image
        case "audio":
            file = part.audio
        case "video":
            file = part.video.frames[0] if part.video.frames else b""
        case _:
            return part.text[:PREFIX_CHARS]
    return blake2b(file, digest_size=IMAGE_CHARS // 2).hexdigest()


def _hashed(beginning: bytes, salt: str) -> int | None:
    if not beginning:
        return None
    return int.from_bytes(blake2b(b"%s\0%s" % (salt.encode(), beginning), digest_size=8).digest(), "big")
