"""How far a Transcribe call has come at the client, and how the rest of it is asked for and joined on.

A window's message says where the next one begins, and nothing is carried over but the language: another worker goes on
there.
"""

from __future__ import annotations

from dataclasses import dataclass

from dormouse_api.v1 import inference_pb2 as pb
from dormouse_gateway.call import Write


@dataclass(slots=True)
class Heard:
    """What the client has."""

    next_frame: int = 0
    num_segments: int = 0
    language: str = ""
    is_done: bool = False  # usage stands in the last message

    def take(self, raw: bytes) -> None:
        """Add a message."""
        response = pb.TranscribeResponse.FromString(raw)
        self.next_frame = max(self.next_frame, response.next_frame)
        self.num_segments += len(response.segments)
        self.language = self.language or response.language
        self.is_done = self.is_done or response.HasField("usage")


@dataclass(frozen=True, slots=True)
class Joined:
    """Writes what another worker says of the rest as if the first one had said it."""

    heard: Heard
    client: Write

    async def write(self, raw: bytes) -> None:
        """Pass a message on."""
        response = pb.TranscribeResponse.FromString(raw)
        for field in ("language", "duration", "request_id"):
            response.ClearField(field)
        response.migrated = response.HasField("usage")
        joined = response.SerializeToString()
        await self.client(joined)
        self.heard.take(joined)


def resumed(body: bytes, heard: Heard) -> bytes:
    """Return the request for the rest."""
    request = pb.TranscribeRequest.FromString(body)
    told = pb.TranscribeResume(first_frame=heard.next_frame, num_segments=heard.num_segments, language=heard.language)
    request.resume.CopyFrom(told)
    return bytes(request.SerializeToString())
