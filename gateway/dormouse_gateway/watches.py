"""What the gateway follows while it runs: objects of the API server, files, and the time of keys."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from dormouse_api.mutual_tls import MutualTls, follow_directory
from dormouse_gateway.clients.keys import Keyring
from dormouse_gateway.files import watch_files
from dormouse_gateway.tls import Identity
from dormouse_kube.reflector import Reflector

_REVIEW_S = 1.0  # between two looks at which keys have expired


@dataclass(frozen=True, slots=True)
class WatchedFiles:
    """The clients' keys and the certificates, as far as there are files of them."""

    keys: Keyring
    identity: Identity | None
    mutual_tls: MutualTls | None
    mutual_tls_dir: Path | None
    every_s: float
    on_certificate: Callable[[], None]

    def start(self, tasks: asyncio.TaskGroup) -> None:
        """Read each anew when it changes."""
        if self.keys.directory:
            tasks.create_task(watch_files((self.keys.directory,), self.keys.reload, every_s=self.every_s))
        if self.mutual_tls and self.mutual_tls_dir:
            following = follow_directory(
                self.mutual_tls, self.mutual_tls_dir, every_s=self.every_s, on_change=self.on_certificate
            )
            tasks.create_task(following)
        if self.identity:
            tasks.create_task(watch_files(self.identity.files, self.identity.reload, every_s=self.every_s))


@dataclass(frozen=True, slots=True)
class Watches:
    """Use: start, then wait until everything was listed once. Outages of the API server end no watch."""

    reflectors: Sequence[Reflector]
    files: WatchedFiles
    review_keys: Callable[[], None]

    def start(self, tasks: asyncio.TaskGroup) -> None:
        """Follow everything."""
        for reflector in self.reflectors:
            tasks.create_task(reflector.run())
        self.files.start(tasks)
        tasks.create_task(self._review())

    async def synced(self) -> None:
        """Return once every object was listed."""
        for reflector in self.reflectors:
            await reflector.synced.wait()

    async def _review(self) -> None:
        while True:
            await asyncio.sleep(_REVIEW_S)
            self.review_keys()
