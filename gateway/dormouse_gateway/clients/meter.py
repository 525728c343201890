"""What one call took in tokens, as its messages tell. Counts for the limits of its key, and for what is shown of usage.

Messages pass as they are: of most only the number counts, and the last one, which says what all took, is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dormouse_api.v1 import inference_pb2 as pb
from dormouse_gateway.call import Call, Write
from dormouse_gateway.clients.keys import Caller
from dormouse_gateway.migrate.progress import may_be_last

_Answer = pb.GenerateResponse | pb.EmbedResponse | pb.ClassifyResponse | pb.ScoreResponse | pb.DecideResponse
_ANSWERS: Mapping[str, type[_Answer]] = {
    "Generate": pb.GenerateResponse,
    "Embed": pb.EmbedResponse,
    "Classify": pb.ClassifyResponse,
    "Score": pb.ScoreResponse,
    "Decide": pb.DecideResponse,
}


@dataclass(slots=True)
class Meter:
    """One call's tokens. Of one that ends early the prompt is an estimate from its bytes."""

    call: Call
    caller: Caller
    usage: pb.Usage = field(default_factory=pb.Usage)
    _charged: int = 0
    _num_messages: int = 0

    @property
    def has_begun(self) -> bool:
        """Return whether there was an answer, or a part of one."""
        return self._num_messages > 0

    def writing(self, write: Write) -> Write:
        """Return what messages are to be written to."""
        if self.call.method.name not in _ANSWERS:
            return write

        async def metered(raw: bytes) -> None:
            self._take(raw)
            await write(raw)

        return metered

    def _take(self, raw: bytes) -> None:
        if not self._num_messages:
            self.usage.prompt_tokens = self.call.demand.prompt_tokens
        self._num_messages += 1
        self.usage.completion_tokens += self.call.demand.tokens_per_message
        if self.call.method.name != "Generate" or may_be_last(raw):
            message = _ANSWERS[self.call.method.name].FromString(raw)
            if message.HasField("usage"):
                self.usage = message.usage
        self._charge()

    def _charge(self) -> None:
        total = self.usage.prompt_tokens + self.usage.completion_tokens
        if self.caller.admission:
            self.caller.admission.add(total - self._charged)
        self._charged = total
