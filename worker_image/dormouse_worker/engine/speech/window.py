"""One window of sound on its way: which tokens it has, at which temperature, and what its next row is."""

from __future__ import annotations

from dataclasses import dataclass, field

from dormouse_worker.common.task_messages import AddWindow, WindowOutput
from dormouse_worker.engine.speech.batch import SpeechRow, SpeechToken
from dormouse_worker.engine.speech.quality import Quality, compression_ratio

NO_PLACE = -1
MAX_SEED = 1 << 64


@dataclass(slots=True)
class Window:
    """Owned by the engine. `place` in the cache is its own from its first pass to its end."""

    message: AddWindow
    order: tuple[int, int]  # priority, number of arrival
    arrival_s: float
    place: int = NO_PLACE
    first_scheduled_s: float = 0.0
    prompt: list[int] = field(default_factory=list)
    language_id: int = -1
    attempt: int = 0  # which of the temperatures
    num_cached: int = 0
    tokens: list[SpeechToken] = field(default_factory=list)  # of this attempt
    num_tokens: int = 0  # of all attempts

    def __post_init__(self) -> None:
        """Begin with the prompt as it came."""
        self.prompt = list(self.message.prompt_token_ids)

    @property
    def finds_language(self) -> bool:
        """Return whether its next token is its language."""
        return bool(self.message.language_ids) and self.language_id < 0

    @property
    def temperature(self) -> float:
        """Return the one of this attempt."""
        return self.message.params.temperatures[self.attempt]

    def row(self) -> SpeechRow:
        """Return what the next pass computes of it."""
        start, params = self.message.start_place, self.message.params
        if self.finds_language:
            asked = self.prompt[start : start + 1]  # as the original does: nothing of what was said before
            return SpeechRow(self.place, asked, 0, 1, language_ids=tuple(self.message.language_ids))
        known = [*self.prompt, *(token.token_id for token in self.tokens)]
        return SpeechRow(
            place=self.place,
            token_ids=known,
            num_cached=self.num_cached,
            num_prompt=len(self.prompt),
            timestamps=params.timestamps,
            temperature=self.temperature,
            seed=(params.seed + self.attempt) % MAX_SEED,
            start_place=-1 if self.tokens else start,
        )

    def take(self, token: SpeechToken) -> WindowOutput | None:
        """Note a token; return the last message if it was the last one."""
        self.num_tokens += 1
        if self.finds_language:
            self.language_id = token.token_id
            self.prompt[self.message.start_place + 1] = token.token_id
            return None
        self.num_cached = len(self.prompt) + len(self.tokens)
        self.tokens.append(token)
        params = self.message.params
        if not token.is_end and len(self.tokens) < params.max_tokens:
            return None
        quality = self._quality()
        if quality.is_poor(params) and self.attempt + 1 < len(params.temperatures):
            self._try_again()
            return None
        return self._output(quality)

    def _try_again(self) -> None:
        """Begin behind the prompt, at the next temperature; what was encoded stays."""
        self.attempt += 1
        self.tokens, self.num_cached = [], 0

    def _quality(self) -> Quality:
        ids = [token.token_id for token in self.tokens]
        average = sum(token.logprob for token in self.tokens) / len(ids)
        ratio = compression_ratio(ids, self.message.params.bytes_per_token)
        return Quality(average, ratio, self.tokens[0].no_speech_prob)

    def _output(self, quality: Quality) -> WindowOutput:
        ids = [token.token_id for token in self.tokens if not token.is_end]
        return WindowOutput(
            self.message.request_id,
            ids,
            language_id=self.language_id,
            is_silent=quality.is_silence(self.message.params),
            temperature=self.temperature,
            avg_logprob=quality.avg_logprob,
            compression_ratio=quality.compression_ratio,
            no_speech_prob=quality.no_speech_prob,
            queue_seconds=self.first_scheduled_s - self.arrival_s,
            num_tokens=self.num_tokens,
        )
