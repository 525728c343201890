"""A folder for what is made of a model's files: this user's own, for what lies there decides what the model reads."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def default_folder(what: str = "tokenizers") -> Path:
    """Return where it is unless somebody names another place."""
    return Path(tempfile.gettempdir(), f"dormouse-{what}-{os.getuid()}")


def require_private(folder: Path, flag: str = "--tokenizer-cache") -> None:
    """Make the folder, or refuse one that others could have filled. Raises OSError."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = folder.stat()
    if status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise PermissionError(f"{folder}: others may write there; give {flag} a directory of your own")
