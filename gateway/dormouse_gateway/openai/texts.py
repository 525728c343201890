"""What tokens look like: asked of a worker, once for each token of a request."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from dormouse_api.v1 import inference_pb2 as pb
from dormouse_gateway.clients.keys import Caller
from dormouse_gateway.clients.requests import Metadata, Request
from dormouse_gateway.openai.calls import Serve, ask


@dataclass(slots=True)
class WorkerTexts:
    """Asks the model's workers on behalf of one request; remembers for as long."""

    serve: Serve
    model: str
    metadata: Metadata
    caller: Caller
    peer: str  # who asks, host:port
    _known: dict[int, str] = field(default_factory=dict)

    async def of(self, token_ids: Iterable[int]) -> dict[int, str]:
        """Return the text of each of these tokens, and of others. Raises CallError."""
        new = sorted(set(token_ids) - self._known.keys())
        if new:
            asked = pb.DetokenizeRequest(model=self.model, token_ids=new, separately=True)
            told = pb.DetokenizeResponse.FromString(await self._ask(asked))
            self._known |= zip(new, told.token_texts, strict=True)
        return self._known

    async def joined(self, token_ids: Iterable[int], *, skip_special_tokens: bool = True) -> str:
        """Return the text of all of them together. Raises CallError."""
        asked = pb.DetokenizeRequest(model=self.model, token_ids=token_ids, skip_special_tokens=skip_special_tokens)
        return pb.DetokenizeResponse.FromString(await self._ask(asked)).text

    async def token_ids(self, request: pb.GenerateRequest) -> list[int]:
        """Return the prompt as the model reads it. Raises CallError."""
        if request.token_ids.ids:
            return list(request.token_ids.ids)
        is_chat = request.HasField("chat")
        asked = pb.TokenizeRequest(model=self.model, chat=request.chat if is_chat else None)
        if not is_chat:
            asked.text = request.text
        return list((await self.tokenize(asked)).token_ids)

    async def tokenize(self, asked: pb.TokenizeRequest) -> pb.TokenizeResponse:
        """Return the tokens of text or of a chat. Raises CallError."""
        return pb.TokenizeResponse.FromString(await self._ask(asked))

    async def embed(self, asked: pb.EmbedRequest) -> pb.EmbedResponse:
        """Return the vectors of texts; waits until a worker serves. Raises CallError."""
        return pb.EmbedResponse.FromString(await self._ask(asked))

    async def classify(self, asked: pb.ClassifyRequest) -> pb.ClassifyResponse:
        """Return the labels of texts; waits as `embed`. Raises CallError."""
        return pb.ClassifyResponse.FromString(await self._ask(asked))

    async def score(self, asked: pb.ScoreRequest) -> pb.ScoreResponse:
        """Return the scores of documents; waits as `embed`. Raises CallError."""
        return pb.ScoreResponse.FromString(await self._ask(asked))

    async def decide(self, asked: pb.DecideRequest) -> pb.DecideResponse:
        """Return the answers to questions; waits as `embed`. Raises CallError."""
        return pb.DecideResponse.FromString(await self._ask(asked))

    async def describe(self) -> pb.GetModelResponse:
        """Return what the model is. Raises CallError."""
        return pb.GetModelResponse.FromString(await self._ask(pb.GetModelRequest(model=self.model)))

    async def _ask(self, asked: Request) -> bytes:
        return await ask(self.serve, asked, self.metadata, self.caller, peer=self.peer)
