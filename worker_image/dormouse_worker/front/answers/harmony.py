"""Messages in channels, as gpt-oss writes them.

<|channel|>analysis<|message|>…<|end|><|start|>assistant<|channel|>final<|message|>…
<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{…}<|call|>
"""

from __future__ import annotations

import re

from dormouse_worker.front.answers.calls import begin, checked_name, read_arguments
from dormouse_worker.front.answers.closable_json import Malformed
from dormouse_worker.front.answers.emitter import Emitter
from dormouse_worker.front.answers.sections import pass_on
from dormouse_worker.front.answers.source import Source, Wait, read_until

_BODY = "<|message|>"
_ENDS = ("<|end|>", "<|return|>", "<|call|>", "<|start|>")
MARKERS = frozenset({_BODY, *_ENDS, "<|channel|>", "<|constrain|>"})
END_MARKERS = frozenset({"<|return|>", "<|call|>"})  # end-of-sequence tokens
_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")
_RECIPIENT = re.compile(r"to=(?:functions\.)?([^\s<]+)")


def read_harmony(source: Source, out: Emitter) -> Wait:
    """Read messages to the end."""
    while True:
        header, marker = yield from read_until(source, [_BODY])
        if not marker:
            if "<|" not in header:
                out.content(header)  # not written in channels at all
            return
        yield from _read_body(source, out, header)


def _read_body(source: Source, out: Emitter, header: str) -> Wait:
    channel, recipient = _CHANNEL.search(header), _RECIPIENT.search(header)
    out.part()
    if recipient:
        source.mark()
        try:
            name = checked_name(recipient.group(1))
            yield from read_arguments(source, begin(source, out, name))
        except Malformed:
            out.content(source.give_back())
        source.forget_mark()
    say = out.reasoning if channel and channel.group(1) == "analysis" else out.content
    yield from pass_on(source, _ENDS, say)
    out.part()
