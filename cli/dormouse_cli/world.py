"""What is around every command: how the cluster is opened, and what listens on this machine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dormouse_api.names import HTTP_PORT, INFERENCE_PORT

if TYPE_CHECKING:  # kubernetes costs half a second: only commands that need it import it
    from dormouse_cli.cluster import Open


@dataclass(frozen=True, slots=True)
class World:
    """What is around a command. Tests put another one into the context's `obj`."""

    open: Open  # opens the cluster that the options mean
    here: str = f"127.0.0.1:{INFERENCE_PORT}"  # where a worker of this machine listens
    http_here: str = f"127.0.0.1:{HTTP_PORT}"  # and where its gateway answers over HTTP
