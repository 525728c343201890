"""A side that computes nothing: answers each request with its own prompt."""

from __future__ import annotations

from bench.helpers import answer_lines
from bench.replies import Reply

if __name__ == "__main__":
    answer_lines(lambda job: [Reply(request.prompt, 0.0, 1.0, 1.0) for request in job.requests])
