"""What one call took in tokens, as its messages tell. Counts for the limits of its key, and for what is shown of usage.

Messages pass as they are: of most only the number counts, and the last one, which says what all took, is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dormouse_api.v1 import inference_pb2 as pb
from dormouse_gateway.call import Call, Write
from dormouse_gateway.clients.counting import Admission
from dormouse_gateway.clients.keys import Caller
from dormouse_gateway.migrate.progress import may_be_last

_Answer = (
    pb.GenerateResponse
    | pb.EmbedResponse
    | pb.ClassifyResponse
    | pb.ScoreResponse
    | pb.DecideResponse
    | pb.TranscribeResponse
)
_ANSWERS: Mapping[str, type[_Answer]] = {
    "Generate": pb.GenerateResponse,
    "Embed": pb.EmbedResponse,
    "Classify": pb.ClassifyResponse,
    "Score": pb.ScoreResponse,
    "Decide": pb.DecideResponse,
    "Transcribe": pb.TranscribeResponse,
}


@dataclass(slots=True)
class Meter:
    """One call's tokens. Of one that ends early the prompt is an estimate from its bytes."""

    call: Call
    caller: Caller
    _told: pb.Usage | None = None  # by the last message
    _charged: int = 0
    _num_messages: int = 0

    @property
    def has_begun(self) -> bool:
        """Return whether there was an answer, or a part of one."""
        return self._num_messages > 0

    @property
    def usage(self) -> pb.Usage:
        """Return what was taken so far."""
        demand = self.call.demand
        said = self._num_messages * demand.tokens_per_message
        return self._told or pb.Usage(prompt_tokens=demand.prompt_tokens, completion_tokens=said)

    def writing(self, write: Write) -> Write:
        """Return what messages are to be written to."""
        if self.call.method.name not in _ANSWERS:
            return write

        async def metered(raw: bytes) -> None:
            self._take(raw)
            await write(raw)

        return metered

    def _take(self, raw: bytes) -> None:
        self._num_messages += 1
        if self.call.method.name != "Generate" or may_be_last(raw):
            message = _ANSWERS[self.call.method.name].FromString(raw)
            if message.HasField("usage"):
                self._told = message.usage
        if self.caller.admission:
            self._charge(self.caller.admission)

    def _charge(self, admission: Admission) -> None:
        usage = self.usage
        total = usage.prompt_tokens + usage.completion_tokens
        admission.add(total - self._charged)
        self._charged = total
