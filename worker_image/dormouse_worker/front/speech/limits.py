"""What sound may take of a front."""

from __future__ import annotations

from dataclasses import dataclass

from dormouse_worker.files.speech_files import FRAMES_A_SECOND, SpeechSpec

_FLOAT_BYTES = 4
_SAMPLES_A_SECOND = 16_000
_SPARE_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class AudioLimits:
    """What sound may take."""

    max_seconds: float = 7200.0  # of one, by its header and in truth
    waiting_bytes: int = 256 << 20  # of files that came and are not decoded yet
    features_bytes: int = 2 << 30  # on disk, of all calls under way
    memory_bytes: int = 1 << 30  # of a process, beyond what it begins with
    seconds: float = 120.0  # of the clock, for one: an hour of sound takes about ten on an idle machine
    start_s: float = 60.0  # until a process answers at all

    def max_file_bytes(self, spec: SpeechSpec) -> int:
        """Return the largest file that a process may write: samples or features of the longest sound."""
        a_second = max(_SAMPLES_A_SECOND, FRAMES_A_SECOND * spec.num_mels) * _FLOAT_BYTES
        return round(self.max_seconds * a_second) + _SPARE_BYTES
