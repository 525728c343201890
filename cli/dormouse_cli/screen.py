"""Where commands write: trees, lines and structured answers go out, remarks go to the error side."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console, RenderableType
from rich.text import Text

from dormouse_cli.lines import Line

_CONTROL = {code: None for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}


class Screen:
    """Two consoles. Colours and boxes are for terminals only; words of others cannot command the terminal."""

    def __init__(self, out: Console, remarks: Console) -> None:
        """Take where to write."""
        self.out = out
        self.remarks = remarks

    @classmethod
    def standard(cls) -> Screen:
        """Return the process' own."""
        return cls(Console(highlight=False), Console(stderr=True, highlight=False))

    def tree(self, lines: Iterable[Line]) -> None:
        """Write lines, each indented by its depth."""
        for line in lines:
            self.say("  " * line.depth + line.text, style=line.style, word=line.word, colour=line.colour)

    def say(self, text: str, *, style: str = "", word: str = "", colour: str = "") -> None:
        """Write one line of an answer."""
        shown = styled(text, style=style, word=word, colour=colour)
        if self.out.is_terminal:
            self.out.print(shown, soft_wrap=True)
        else:
            self.out.file.write(shown.plain + "\n")
            self.out.file.flush()

    def draw(self, drawing: RenderableType) -> None:
        """Write a table or the like."""
        self.out.print(drawing)

    def remark(self, text: str) -> None:
        """Say something beside the answer."""
        self.remarks.print(Text(text.translate(_CONTROL), style="dim"), soft_wrap=True)

    def error(self, message: str) -> None:
        """Say why it did not work."""
        self.remarks.print(Text.assemble(("error: ", "bold red"), message.translate(_CONTROL)), soft_wrap=True)

    def structured(self, value: Mapping[str, Any] | Sequence[Any], form: str) -> None:
        """Write JSON or YAML."""
        write: Callable[[Any], str] = _yaml if form == "yaml" else _json
        self.out.file.write(write(value))
        self.out.file.flush()


def styled(text: str, *, style: str = "", word: str = "", colour: str = "") -> Text:
    """Return the text without control characters, the word in its colour."""
    shown = Text(text.translate(_CONTROL), style=style)
    if word:
        shown.highlight_words([word], style=colour)
    return shown


def _json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def _yaml(value: Any) -> str:
    import yaml

    return str(yaml.safe_dump(value, sort_keys=False, allow_unicode=True))
