"""What a GGUF file says of itself, asked for by key and type; what is missing or of another type is refused by name."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeVar

from dormouse_worker.common.errors import ModelInvalid
from dormouse_worker.files.gguf.header import GgufFile, Strings

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Facts:
    """The keys of a file."""

    gguf: GgufFile

    @property
    def architecture(self) -> str:
        """Return llama.cpp's name of the architecture, with which its keys begin."""
        return self.text("general.architecture")

    def refusal(self, what: str) -> ModelInvalid:
        """Return the error that says what is wrong with the file."""
        return ModelInvalid(f"{self.gguf.file}: {what}")

    def whole(self, key: str, default: int | None = None) -> int:
        """Return a whole number that is not negative, or what holds where there is none; None = it is needed."""
        found = self.maybe_whole(key)
        return self._needed(key, default) if found is None else found

    def maybe_whole(self, key: str) -> int | None:
        """Return a whole number that is not negative, None where there is none."""
        value = self.gguf.metadata.get(key)
        if value is not None and (type(value) is not int or value < 0):
            raise self.refusal(f"{key} is {str(value)[:80]!r}; a whole number is needed")
        return value

    def real(self, key: str, default: float | None = None) -> float:
        """Return a number, or what holds where there is none; None = it is needed."""
        found = self.maybe_real(key)
        return self._needed(key, default) if found is None else found

    def maybe_real(self, key: str) -> float | None:
        """Return a number as somebody wrote it: 1e-5 in 32 bits is 9.9999997e-06. None where there is none."""
        value = self.gguf.metadata.get(key)
        if value is None:
            return None
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise self.refusal(f"{key} is {str(value)[:80]!r}; a number is needed")
        return float(f"{value:.7g}")

    def flag(self, key: str, default: bool) -> bool:  # noqa: FBT001  # of the same kind as the others
        """Return whether it is so."""
        value = self.gguf.metadata.get(key, default)
        if not isinstance(value, bool):
            raise self.refusal(f"{key} is {str(value)[:80]!r}; true or false is needed")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        """Return a string, or what holds where there is none; None = it is needed."""
        value = self.gguf.metadata.get(key)
        if value is None:
            return self._needed(key, default)
        if not isinstance(value, str):
            raise self.refusal(f"{key} is {str(value)[:80]!r}; a string is needed")
        return value

    def texts(self, key: str) -> Strings:
        """Return an array of strings."""
        value = self.gguf.metadata.get(key)
        if not isinstance(value, Strings):
            raise self._odd(key, value, "an array of strings")
        return value

    def numbers(self, key: str, code: str) -> list[float]:
        """Return an array of numbers of the type that `array` calls so."""
        value = self.gguf.metadata.get(key)
        if not isinstance(value, array) or value.typecode != code:
            raise self._odd(key, value, "an array of numbers")
        return list(value)

    def of_architecture(self) -> Iterator[str]:
        """Yield the keys of the architecture's own, without its name."""
        prefix = f"{self.architecture}."
        return (key.removeprefix(prefix) for key in self.gguf.metadata if key.startswith(prefix))

    def _needed(self, key: str, default: T | None) -> T:
        if default is None:
            raise self._odd(key, None, "")
        return default

    def _odd(self, key: str, value: object, wanted: str) -> ModelInvalid:
        if value is None:
            return self.refusal(f"has no {key}, which is needed; convert the model again")
        return self.refusal(f"{key} is {str(value)[:80]!r}; {wanted} is needed")
