"""The seam to a model hub: what a repository holds, and its files, continued where they broke off. Imports no torch.

The only importer of huggingface_hub, whose errors become ours here. Its own `snapshot_download` is not used: it drops
partial files when a process ends, and takes a directory for complete when the hub cannot be asked.
"""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx2
from huggingface_hub import HfApi, hf_hub_url
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.file_download import http_get
from huggingface_hub.utils import build_hf_headers, disable_progress_bars  # type: ignore[attr-defined]  # they are there

from dormouse_worker.common.errors import HubUnreachable, ModelNotFound, StorageFull, Truncated, Unauthorized

_FULL = {errno.ENOSPC, errno.EDQUOT}


@dataclass(frozen=True, slots=True)
class Remedies:
    """What to do, in the words of where the user said what he wants: an InferenceDeployment, unless told otherwise."""

    token: str = "set spec.model.tokenSecretRef to a Secret whose token may read it"  # noqa: S105  # a sentence
    repo: str = "check spec.model.uri"
    revision: str = "check spec.model.revision"
    room: str = "give spec.cache more room"


IN_A_CLUSTER = Remedies()
ON_A_MACHINE = Remedies(  # nosec B106  # a sentence
    token="set HF_TOKEN to a token that may read it",  # noqa: S106  # a sentence
    repo="check the name, ORG/NAME",
    revision="check --revision",
    room="free some, or set DORMOUSE_CACHE to a folder of another disk",
)


@dataclass(frozen=True, slots=True)
class HubFile:
    """One file of a repository."""

    name: str  # with its folders
    num_bytes: int
    sha256: str = ""  # of large files only


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a repository holds at one commit."""

    commit: str
    files: tuple[HubFile, ...]


class Hub:
    """One repository at one revision. Raises ModelNotFound, Unauthorized, Truncated, StorageFull, HubUnreachable."""

    def __init__(
        self,
        repo: str,
        revision: str,
        *,
        token: str = "",
        endpoint: str | None = None,
        remedies: Remedies = IN_A_CLUSTER,
    ) -> None:
        """Take ORG/NAME and the hub's address; None is the public one."""
        disable_progress_bars()
        self._remedies = remedies
        self._repo = repo
        self._revision = revision
        self._token: str | bool = token or False  # False: none, also not one that lies in HF_HOME
        self._endpoint = endpoint
        self._api = HfApi(token=self._token, endpoint=endpoint)

    def __repr__(self) -> str:
        """Show what it reads, never the token."""
        return f"Hub(hf://{self._repo}@{self._revision})"

    def look_up(self) -> Snapshot:
        """Ask what there is."""
        with self._errors():
            info = self._api.model_info(self._repo, revision=self._revision, files_metadata=True)
        files = tuple(
            HubFile(found.rfilename, found.size or 0, found.lfs.sha256 if found.lfs else "")
            for found in info.siblings or ()
        )
        return Snapshot(info.sha or self._revision, files)

    def fetch(self, commit: str, file: HubFile, target: Path) -> None:
        """Put the file at `target`, whole and checked or not at all; what an earlier try left beside it is continued.

        A partial file stays on every error but a wrong content, which cannot be continued.
        """
        partial = partial_of(target)
        target.parent.mkdir(parents=True, exist_ok=True)
        if partial.exists() and partial.stat().st_size > file.num_bytes:
            partial.unlink()
        with self._errors(file, partial):
            self._continue(commit, file, partial)
        if file.sha256 and _sha256(partial) != file.sha256:
            partial.unlink()
            raise Truncated(f"{file.name} of {self._name} is damaged: its SHA-256 is not {file.sha256}; try again")
        _sync(partial)
        partial.rename(target)

    def _continue(self, commit: str, file: HubFile, partial: Path) -> None:
        """Append what is missing."""
        url = hf_hub_url(self._repo, file.name, revision=commit, endpoint=self._endpoint)
        headers = build_hf_headers(token=self._token)
        with partial.open("ab") as stream:
            http_get(url, stream, resume_size=stream.tell(), headers=headers, expected_size=file.num_bytes)

    @contextmanager
    def _errors(self, file: HubFile | None = None, partial: Path | None = None) -> Iterator[None]:
        """Turn what the hub, the network and the disk say into our errors."""
        try:
            yield
        except RevisionNotFoundError as error:
            raise ModelNotFound(
                f"{self._name}: the repository has no such revision; {self._remedies.revision}"
            ) from error
        except HfHubHTTPError as error:
            raise self._refusal(error, file) from error
        except httpx2.HTTPError as error:
            raise HubUnreachable(f"{self._name}: {type(error).__name__}: {error}") from error
        except OSError as error:
            raise self._local(error, file, partial) from error
        except HFValidationError as error:
            raise ModelNotFound(f"{self._name}: {error}; {self._remedies.repo}") from error

    def _refusal(self, error: HfHubHTTPError, file: HubFile | None) -> Exception:
        """Return what an answer with an error status means."""
        status = error.response.status_code
        subject = f"{file.name} of {self._name}" if file else self._name
        if isinstance(error, GatedRepoError):
            return Unauthorized(f"{subject} is gated: accept its terms on the hub and {self._remedies.token}")
        if status in {401, 403}:
            sent = "the token that was sent may not read it" if self._token else "no token was sent"
            return Unauthorized(
                f"{subject} does not exist or is private ({status}), and {sent}; {self._remedies.token}"
            )
        if status == 404 or isinstance(error, RepositoryNotFoundError):
            return ModelNotFound(f"{subject} does not exist; {self._remedies.repo}")
        if status == 416:
            return Truncated(f"{subject} is shorter on the hub than announced; try again")
        return HubUnreachable(f"{subject}: the hub answers {status}")

    def _local(self, error: OSError, file: HubFile | None, partial: Path | None) -> Exception:
        """Return what an error of the disk means, or of a transfer that ended early."""
        if error.errno in _FULL:
            return StorageFull(f"the cache volume is full: {error}; {self._remedies.room}")
        if file and partial and error.errno is None:
            return Truncated(
                f"{file.name} of {self._name} ended after {partial.stat().st_size} of {file.num_bytes} bytes; try again"
            )
        return HubUnreachable(f"{self._name}: {error}")

    @property
    def _name(self) -> str:
        return f"hf://{self._repo} at revision {self._revision}"


def partial_of(target: Path) -> Path:
    """Return where a file lies while it comes."""
    return target.with_name(f".{target.name}.partial")


def _sync(path: Path) -> None:
    """Have the content on the disk before the name says that it is there."""
    with path.open("rb") as stream:
        os.fsync(stream.fileno())


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
