"""Takes secrets out of what is sent along with a report. Pure.

Three nets: (1) places that hold secrets: values of environment variables, of keys whose names say so, annotations with
whole copies of objects; (2) what was found there is replaced wherever else it stands, in logs too; (3) shapes of
secrets: tokens after Bearer, passwords in addresses, keys of known services, private keys.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

GONE = "[redacted]"
_SECRET_NAME = re.compile(r"(?i)(token|secret|passw|credential|api[-_]?key|private[-_]?key|authorization)")
_REFERENCE = re.compile(r"(?i)(ref|secretname|secretkeyref)$")  # names of Secrets are no secrets
_COPIES = {"kubectl.kubernetes.io/last-applied-configuration", "dormouse.dev/previous-spec"}
_SHAPES = (
    (re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL), GONE),
    (re.compile(r"(?i)\b(bearer|basic)\s+[^\s\"',;]+"), rf"\1 {GONE}"),
    (re.compile(r"(?i)(\b[a-z][a-z0-9+.-]*://[^\s/:@]*:)[^\s/@]+@"), rf"\1{GONE}@"),
    (re.compile(r"\b(hf_|sk-|ghp_|github_pat_|xox[abp]-|AKIA|eyJ)[A-Za-z0-9._-]{8,}"), rf"\1{GONE}"),
    (
        re.compile(
            r"(?i)([a-z0-9_.-]*(?:token|secret|passw(?:or)?d|api[-_]?key)[\"']?\s*[=:]\s*[\"']?)"
            r"(?!\[redacted\])[^\s\"',;}&]+"
        ),
        rf"\1{GONE}",
    ),
)
_SHORTEST = 6  # what is shorter and found elsewhere is a word like "true", not a secret


class Redactor:
    """Takes secrets out of objects first, then, knowing them, out of text. Owns what it found."""

    def __init__(self) -> None:
        """Begin without any secret."""
        self._found: set[str] = set()

    def __repr__(self) -> str:
        """Show how many, never which."""
        return f"Redactor({len(self._found)} secrets)"

    def object(self, value: Any) -> Any:
        """Return a copy without secrets."""
        if isinstance(value, Mapping):
            return {key: self._entry(str(key), inner, value) for key, inner in value.items() if key != "managedFields"}
        if isinstance(value, (list, tuple)):
            return [self._argument(inner) if isinstance(inner, str) else self.object(inner) for inner in value]
        return value

    def strings(self, value: Any) -> Any:
        """Return a copy with every string freed as a text is; whatever it is part of keeps its form."""
        if isinstance(value, Mapping):
            return {self.text(str(key)): self.strings(inner) for key, inner in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.strings(inner) for inner in value]
        return self.text(value) if isinstance(value, str) else value

    def text(self, text: str) -> str:
        """Return the text without secrets that were found, or that look like some."""
        for secret in sorted(self._found, key=len, reverse=True):
            text = text.replace(secret, GONE)
        for shape, instead in _SHAPES:
            text = shape.sub(instead, text)
        return text

    def _entry(self, key: str, value: Any, around: Mapping[str, Any]) -> Any:
        is_variable = key == "value" and "name" in around  # env: [{name, value}], and the like
        holds_secret = bool(_SECRET_NAME.search(key)) and not _REFERENCE.search(key)
        if isinstance(value, str) and (is_variable or holds_secret or key in _COPIES):
            self._remember(value, is_copy=key in _COPIES)
            return GONE
        return self.object(value)

    def _argument(self, value: str) -> str:
        """Return a flag without its value where its name says secret, as in --api-key=…."""
        name, equals, secret = value.partition("=")
        if equals and _SECRET_NAME.search(name):
            self._remember(secret, is_copy=False)
            return f"{name}={GONE}"
        return value

    def _remember(self, value: str, *, is_copy: bool) -> None:
        if not is_copy and len(value) >= _SHORTEST:
            self._found.add(value)
