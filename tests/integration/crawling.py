"""Real workers that compute slowly on demand: whatever a test does to a stream, the stream is in its middle then.

How long a small model's stream takes depends on the machine, and on who else is at work there: a test that only
hopes to come before the end comes too late one day.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

CRAWLING = ("--worker-cls", "tests.integration.crawling_worker.CrawlingWorker")
CRAWL = "crawl"
PASS_S = 0.1  # a stream of 200 tokens takes 20 seconds


def own_copy(model: Path, folder: Path) -> Path:
    """Make a folder whose files are those of the model, for one worker that is told apart to crawl; return it."""
    return Path(shutil.copytree(model, folder, copy_function=os.symlink))


@contextmanager
def crawling(*models: Path) -> Iterator[None]:
    """Have the workers of these folders compute one pass in `PASS_S` while the block runs."""
    files = [model / CRAWL for model in models]
    for file in files:
        file.touch()
    try:
        yield
    finally:
        for file in files:
            file.unlink()
