"""How answers look: tokens as they come, figures for people only. Plain text where nobody looks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from dormouse_api.v1 import inference_pb2 as pb

# The text of a model is data: control characters in it could rewrite the terminal's screen.
_CONTROL = {code: None for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}


class Output:
    """Writes to two consoles: answers go out, remarks go to the error side, so that pipes get the answer alone."""

    def __init__(self, out: Console, remarks: Console) -> None:
        """Take where to write."""
        self._out = out
        self._remarks = remarks

    def stream(self, responses: Iterable[pb.GenerateResponse]) -> None:
        """Write the text as it comes, and at the end, for people, how long it is and why it ended."""
        last = pb.GenerateResponse()
        for last in responses:
            self._write(last.text, end="")
        self._write("")
        if self._out.is_terminal:
            self._remark(_summary(last))

    def token_ids(self, ids: Sequence[int]) -> None:
        """Write token ids in one line."""
        self._write(" ".join(str(one) for one in ids))

    def model(self, model: pb.GetModelResponse) -> None:
        """Write a model's properties: a table for people, `name<tab>value` lines else."""
        rows = [(field.name, _shown(getattr(model, field.name))) for field in model.DESCRIPTOR.fields]
        if not self._out.is_terminal:
            for name, value in rows:
                self._write(f"{name}\t{value}")
            return
        table = Table(show_header=False, box=None)
        for name, value in rows:
            table.add_row(Text(name, style="dim"), Text(value))
        self._out.print(table)

    def error(self, message: str) -> None:
        """Say why it did not work."""
        self._remarks.print(Text.assemble(("error: ", "bold red"), message.translate(_CONTROL)), soft_wrap=True)

    def ask(self) -> str:
        """Read one line from the user. Raises EOFError at the end of the input."""
        return self._out.input("> " if self._out.is_terminal else "")

    def _write(self, text: str, *, end: str = "\n") -> None:
        shown = text.translate(_CONTROL) if self._out.is_terminal else text
        self._out.file.write(shown + end)  # past rich, which would turn tabs into spaces
        self._out.file.flush()  # a pipe gets tokens as they come, too

    def _remark(self, text: str) -> None:
        self._remarks.print(Text(text, style="dim"), soft_wrap=True)


def _summary(last: pb.GenerateResponse) -> str:
    reason = pb.FinishReason.Name(last.finish_reason).removeprefix("FINISH_REASON_").lower()
    seconds = last.timings.decode_seconds
    speed = f", {(last.usage.completion_tokens - 1) / seconds:.1f} tokens/s" if seconds > 0 else ""
    return f"[{last.usage.prompt_tokens} + {last.usage.completion_tokens} tokens{speed}, ended by {reason}]"


def _shown(value: str | int | Iterable[object]) -> str:
    return str(value) if isinstance(value, (str, int)) else " ".join(str(one) for one in value)
