"""What both clients are told: where, how encrypted, as whom. Makes channels' arguments; opens none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import grpc

from dormouse_api.images import frames_from_url, from_base64, part_of_url, sound_from_url
from dormouse_api.limits import channel_options
from dormouse_api.v1 import inference_pb2 as pb


@dataclass(frozen=True, slots=True)
class Tls:
    """How a client speaks TLS. PEM throughout."""

    roots: bytes | None = None  # CAs to trust; None = those of gRPC
    certificate: bytes | None = None  # the client's own chain, where the server asks for one
    key: bytes | None = None  # and its key
    server_name: str = ""  # the name in the server's certificate, where it is not that of the address

    def __repr__(self) -> str:
        """Show no key."""
        own = "with" if self.key else "without"
        return f"Tls({self.server_name or 'the name of the address'}, {own} a certificate of its own)"

    def credentials(self) -> grpc.ChannelCredentials:
        """Return them as gRPC takes them."""
        return grpc.ssl_channel_credentials(self.roots, self.key, self.certificate)


def options(tls: Tls | None) -> list[tuple[str, Any]]:
    """Return a channel's options."""
    named = [("grpc.ssl_target_name_override", tls.server_name)] if tls and tls.server_name else []
    return [*channel_options(), *named]


def metadata(api_key: str | None) -> tuple[tuple[str, str], ...]:
    """Return what every call carries. Raises ValueError for a key that no header can hold; does not repeat it."""
    if api_key is None:
        return ()
    if not api_key.isascii() or not api_key.isprintable() or not api_key.strip():
        raise ValueError("api_key holds characters that no header can hold; allowed is printable ASCII")
    return (("authorization", f"Bearer {api_key}"),)


def text_request(model: str, prompt: str, sampling: dict[str, Any]) -> pb.GenerateRequest:
    """Return the request for a text. Raises ValueError naming a sampling parameter that does not exist."""
    return pb.GenerateRequest(model=model, text=prompt, sampling_params=pb.SamplingParams(**sampling))


def chat_request(model: str, messages: Sequence[Mapping[str, Any]], sampling: dict[str, Any]) -> pb.GenerateRequest:
    """Return the request for the next turn of a conversation; a message has role and content."""
    chat = pb.Chat(messages=map(to_message, messages))
    return pb.GenerateRequest(model=model, chat=chat, sampling_params=pb.SamplingParams(**sampling))


def to_message(message: Mapping[str, Any]) -> pb.ChatMessage:
    """Return a turn; its content may be a list of parts as OpenAI's clients send them. Raises ValueError."""
    said = dict(message)
    if isinstance(said.get("content"), list | tuple):
        said["parts"] = [_part(part) for part in said.pop("content")]
    return pb.ChatMessage(**said)


def _part(part: Mapping[str, Any]) -> pb.ContentPart:
    """Return {"type": "text", "text"}, {"type": "image", "image"}, or what OpenAI's and vLLM's clients send.

    That is {"type": "image_url", "image_url": {"url"}}, {"type": "video_url", "video_url": {"url", "fps"}},
    {"type": "input_audio", "input_audio": {"data"}} and {"type": "audio_url", "audio_url": {"url"}}.
    """
    match part.get("type"):
        case "text":
            return pb.ContentPart(text=part["text"])
        case "image_url":
            return part_of_url(part["image_url"]["url"])
        case "video_url":
            told = part["video_url"]
            video = pb.Video(frames=frames_from_url(told["url"]), fps=told.get("fps") or 0)
            return pb.ContentPart(video=video)
        case "input_audio":
            return pb.ContentPart(audio=from_base64(part["input_audio"]["data"], is_sound=True))
        case "audio_url":
            return pb.ContentPart(audio=sound_from_url(part["audio_url"]["url"]))
        case "image":
            return pb.ContentPart(image=part["image"])
    raise ValueError(
        f"a part of the type {part.get('type')!r}; allowed: text, image_url with a data URL or a digest, image, "
        "video_url with a data URL of frames, input_audio, audio_url with a data URL"
    )
