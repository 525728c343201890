"""Everything that a call to the Kubernetes API may raise; foreign exceptions do not leave this package."""

from __future__ import annotations


class KubeError(Exception):
    """The API server answered with an error that has no name of its own here."""

    def __init__(self, message: str, *, status: int = 0, reason: str = "") -> None:
        """Take the server's own words, the HTTP status (0 = no answer) and its CamelCase reason."""
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.about = ""  # the object that was written, as "Kind name"; whoever writes sets it


class NotFound(KubeError):
    """The object, or the kind itself, does not exist."""


class Conflict(KubeError):
    """The object changed or exists already; observe again."""


class Gone(KubeError):
    """The watch's resource version is too old; list again."""


class Forbidden(KubeError):
    """RBAC or admission refused it; the message names verb and resource."""

    @property
    def is_missing_right(self) -> bool:
        """Return whether the caller has no right to do this at all, whatever the object holds."""
        return " cannot " in str(self)  # User "x" cannot create resource "pods" in API group "" …


class Invalid(KubeError):
    """The object is not valid; the message names the field. Only a changed spec can help."""


class Unavailable(KubeError):
    """No answer, 429 or 5xx: try again after `retry_after_s`."""

    def __init__(self, message: str, *, status: int = 0, reason: str = "", retry_after_s: float | None = None) -> None:
        """Take also the server's Retry-After in seconds, None if it gave none."""
        super().__init__(message, status=status, reason=reason)
        self.retry_after_s = retry_after_s
