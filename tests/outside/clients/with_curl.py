"""curl, as scripts use it. Its errors are the server's words with the status."""

from __future__ import annotations

import json
import subprocess
from typing import Any

from asking import QUESTION, Answer, tell


class Refused(Exception):
    """An answer with another status than 200."""


class Curl:
    """The program curl."""

    def __init__(self, address: str, key: str, model: str) -> None:
        """Take where and what to ask."""
        self._address, self._key = address, key
        self._asked: dict[str, Any] = {"model": model, "messages": [{"role": "user", "content": QUESTION}]}

    def answer(self, **sampling: Any) -> Answer:
        """Return an answer in one piece."""
        got = json.loads(self._run("/chat/completions", temperature=0, logprobs=True, **sampling))
        (choice,) = got["choices"]
        logprobs = [token["logprob"] for token in choice["logprobs"]["content"]]
        return Answer(choice["message"]["content"], choice["finish_reason"], _usage(got), logprobs)

    def stream(self, **sampling: Any) -> Answer:
        """Return the events' texts."""
        how = {"temperature": 0, "stream": True, "stream_options": {"include_usage": True}}
        lines = self._run("/chat/completions", **how, **sampling).splitlines()
        *told, done = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
        assert done == "[DONE]"
        *events, last = map(json.loads, told)
        texts = [text for event in events if (text := event["choices"][0]["delta"].get("content"))]
        return Answer("".join(texts), events[-1]["choices"][0]["finish_reason"], _usage(last))

    def models(self) -> list[str]:
        """Return the models' names."""
        return [model["id"] for model in json.loads(self._run("/models"))["data"]]

    def leave(self, **sampling: Any) -> None:
        """Kill it."""
        command = self._command("/chat/completions", stream=True, ignore_eos=True, **sampling)
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
            assert running.stdout
            next(line for line in running.stdout if '"content":"' in line and '"content":""' not in line)
            running.kill()

    def _run(self, path: str, **body: Any) -> str:
        command = [*self._command(path, **body), "--write-out", "%{http_code}"]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        text, status = said[:-3], said[-3:]
        if status != "200":
            raise Refused(f"{status} {text}")
        return text

    def _command(self, path: str, **body: Any) -> list[str]:
        command = ["curl", "--silent", "--no-buffer", self._address + path, "-H", f"authorization: Bearer {self._key}"]
        if not body:
            return command
        return [*command, "-H", "content-type: application/json", "--data", json.dumps(self._asked | body)]


def _usage(got: dict[str, Any]) -> tuple[int, int]:
    return got["usage"]["prompt_tokens"], got["usage"]["completion_tokens"]


if __name__ == "__main__":
    tell(Curl)
