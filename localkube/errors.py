"""What can go wrong, by who must act; each message stands alone."""

from __future__ import annotations


class LocalkubeError(Exception):
    """The run cannot go on; the text names the component, what happened and what to do."""


class HostError(LocalkubeError):
    """The machine lacks something: rights, space, a package, a free port."""


class BuildError(LocalkubeError):
    """A Go build failed; the text ends with the compiler's last lines."""


class ComponentError(LocalkubeError):
    """A component died or did not get ready; the text ends with its last log lines and the log's path."""


class ApiError(LocalkubeError):
    """The API server refused a request or could not be reached."""

    def __init__(self, message: str, *, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status  # HTTP status; None when there was no answer
