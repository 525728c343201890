"""`dormouse serve` as a process of a test, with a tiny model."""

from __future__ import annotations

import os
import random
import select
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import openai

from tools.train_model import Recipe, build_model, train_tokenizer

WAIT_S = 110
SMALL = Recipe(vocab_size=320, hidden_size=32, num_layers=1, num_heads=2, num_kv_heads=1, intermediate_size=64)
FLAGS = ["--max-model-len", "128", "--kv-cache-memory", "8Mi", "--dtype", "float32", "--port", "0", "--http-port", "0"]


def make_model(folder: Path) -> Path:
    """Have a model there that learned nothing, with a tokenizer and a chat template; return where."""
    words = random.Random(1)
    texts = [" ".join(words.choice(("sleep", "wake", "nest", "nut")) for _ in range(20)) for _ in range(50)]
    build_model(SMALL).save_pretrained(folder)
    train_tokenizer(texts, SMALL.vocab_size).save_pretrained(folder)
    return folder


class Serving:
    """The command and its processes, in a process group of their own, as a terminal would have them."""

    def __init__(self, model: str, *flags: str, closed: str = "", **environ: str) -> None:
        """`closed` says, as a shell does, which descriptors it shall not have."""
        command = ["bash", "-c", f'exec "$@" {closed}', "_", sys.executable, "-m", "dormouse_cli", "serve", model]
        command += [*FLAGS, *flags]
        env = {**os.environ, **environ}
        self.process = subprocess.Popen(
            command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
        )
        self.said = ""

    def until_said(self, words: str) -> str:
        """Read until a line has these words; return it."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said += line
            if words in line:
                return line
        raise AssertionError(f"it ended: {self.said}")

    def client(self) -> openai.OpenAI:
        """Return a client of the API, once the model is ready and its address is told."""
        address = self.until_said("OpenAI's API on ").split()[-1]
        return openai.OpenAI(api_key="none", base_url=address, max_retries=0, timeout=WAIT_S)

    def group(self) -> list[int]:
        """Return the processes of the group, threads left out."""
        listed = subprocess.run(["ps", "-e", "-o", "pid=,pgid="], capture_output=True, text=True, check=True).stdout
        rows = [tuple(map(int, row.split())) for row in listed.splitlines()]
        return [pid for pid, group in rows if group == self.process.pid]


@contextmanager
def serving(model: str | Path, *flags: str, closed: str = "", **environ: str):
    """Run the command while the block runs."""
    one = Serving(str(model), *flags, closed=closed, **environ)
    try:
        yield one
    finally:
        if one.process.poll() is None:
            os.killpg(one.process.pid, signal.SIGKILL)
        one.process.wait()
        one.process.stdout.close()


def until_gone(pids: list[int]) -> None:
    """Wait until all of these have ended. Raises AssertionError for one that has not."""
    for pid in pids:
        try:
            ended = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        assert select.select([ended], [], [], WAIT_S)[0], pid
        os.close(ended)


def end(served: Serving) -> None:
    """Press Ctrl-C; all of it ends."""
    processes = served.group()
    os.killpg(served.process.pid, signal.SIGINT)
    assert served.process.wait(WAIT_S) == 0
    until_gone(processes)
