"""Runs one pass over windows of sound: reads and encodes one, computes a token of each, by the rules of its tokens."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from dormouse_worker.common.errors import InvalidArgument
from dormouse_worker.engine.speech.batch import EncodeWindow, SpeechBatch, SpeechOutput, SpeechRow, SpeechToken
from dormouse_worker.model.promised_files import AnotherFile, read_promised
from dormouse_worker.model.sampling.draw import draw
from dormouse_worker.model.sampling.exact_softmax import weigh
from dormouse_worker.model.sampling.philox import uniforms
from dormouse_worker.model.speech.arithmetic import spans_of
from dormouse_worker.model.speech.cache import Places
from dormouse_worker.model.speech.loader import LoadedSpeech
from dormouse_worker.model.speech.rules import TokenRules

logger = logging.getLogger(__name__)

_FLOAT_BYTES = 4


@dataclass(frozen=True, slots=True)
class SpeechRunner:
    """A model over places; owns nothing."""

    model: LoadedSpeech
    places: Places
    folder: str  # where windows lie

    @torch.inference_mode()
    def execute(self, batch: SpeechBatch) -> SpeechOutput:
        """Encode, then compute a token of each row, in order."""
        unreadable: dict[int, str] = {}
        for window in batch.encode:
            if (why := self._encode(window)) is not None:
                unreadable[window.place] = why
        tokens, odd = self._decode(batch.rows)
        return SpeechOutput(tokens, odd, unreadable)

    @torch.inference_mode()
    def profile(self, num_rows: int) -> None:
        """Run the largest pass of so many rows, all in the first place."""
        spec = self.model.spec
        self.model.network.encode(torch.zeros(spec.num_mels, spec.window_frames), self.places, 0)
        prompt = [spec.start] * (spec.max_target_positions // 2)
        longest = SpeechRow(0, prompt, 0, len(prompt), start_place=0)
        self._decode((longest,) * num_rows)

    def _encode(self, window: EncodeWindow) -> str | None:
        """Write a window into its place; return why that is not possible. Zeros stand there then."""
        try:
            features = self._read(Path(self.folder, window.tensors))
            self.model.network.encode(features, self.places, window.place)
        except (OSError, InvalidArgument) as error:
            logger.warning("a window cannot be encoded", exc_info=True)
            for layer in range(self.model.sizes.num_layers):
                rows = self.places.cross_of(window.place, layer)
                rows.key.zero_()
                rows.value.zero_()
            return f"the window cannot be encoded: {error}"
        return None

    def _read(self, path: Path) -> torch.Tensor:
        """Return features [mels, frames]. Raises OSError, InvalidArgument for what is no window."""
        spec = self.model.spec
        wanted = spec.num_mels * spec.window_frames * _FLOAT_BYTES
        try:
            contents = read_promised(path, wanted)
        except AnotherFile as error:
            raise InvalidArgument(f"its file has {error.found_bytes} bytes; needed are {wanted}") from error
        features = np.frombuffer(contents, np.float32).reshape(spec.window_frames, spec.num_mels)
        if not np.isfinite(features).all():
            raise InvalidArgument("its features are not finite")
        return torch.from_numpy(features.T.copy())

    def _decode(self, rows: Sequence[SpeechRow]) -> tuple[list[SpeechToken], tuple[int, ...]]:
        hidden, spans = self.model.network.decode(rows, self.places), spans_of(rows)
        last = self.model.network.logits(hidden[[span.stop - 1 for span in spans]])
        finite = torch.isfinite(last).all(dim=-1).tolist()
        silence = self._no_speech(hidden, rows, spans)
        tokens = [
            self._choose(last[place], row, silence.get(place, 0.0)) if finite[place] else SpeechToken(0, 0.0)
            for place, row in enumerate(rows)
        ]
        return tokens, tuple(place for place, is_finite in enumerate(finite) if not is_finite)

    def _no_speech(self, hidden: torch.Tensor, rows: Sequence[SpeechRow], spans: Sequence[slice]) -> dict[int, float]:
        """Return by place in `rows` how likely it is that nobody speaks, of those that begin."""
        asked = {place: spans[place].start + row.start_place for place, row in enumerate(rows) if row.start_place >= 0}
        if not asked:
            return {}
        logits = self.model.network.logits(hidden[list(asked.values())])
        likely = torch.softmax(logits, dim=-1)[:, self.model.spec.no_speech].tolist()
        return dict(zip(asked, likely, strict=True))

    def _choose(self, logits: torch.Tensor, row: SpeechRow, no_speech_prob: float) -> SpeechToken:
        TokenRules(self.model.spec).apply(logits, row)
        token_id = int(logits.argmax()) if row.temperature == 0 else _sampled(logits, row)
        logprob = float(torch.log_softmax(logits, dim=-1)[token_id])
        return SpeechToken(token_id, logprob, token_id == self.model.spec.eos, no_speech_prob)


def _sampled(logits: torch.Tensor, row: SpeechRow) -> int:
    """Return a token by its probability at the row's temperature; the same for the same seed and position."""
    numbers = uniforms([row.seed], [len(row.token_ids)], [0])
    chosen, _ = draw(weigh(logits[None], [row.temperature]), numbers)
    return int(chosen)
