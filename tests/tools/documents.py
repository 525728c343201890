"""The documents' blocks of code, and the commands in them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass

from tools.bootstrap import ROOT

NAMES = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "examples/extend/README.md", "docs/**/*.md")
FENCED = re.compile(r"^(?P<indent> *)```(?P<language>\w*)\n(?P<text>.*?)^(?P=indent)```", re.DOTALL | re.MULTILINE)
# Words that begin a line of a command in a block without a language and without prompts.
PROGRAMS = ("dormouse", "helm", "kubectl", "make", "pip", "python", "python3")
SPAN = re.compile(r"(?<!`)`([^`]+)`(?!`)")
LEFT_OPEN = re.compile(r"COMMAND|…|\|")  # a command of which a part is for the reader to choose
ASSIGNMENT = re.compile(r"[A-Z_]+=\S*")


@dataclass(frozen=True, slots=True)
class Command:
    """One command as it is typed."""

    document: str
    text: str
    is_whole: bool = True  # else it is named in a sentence, which may leave out what it does not speak of

    def __str__(self) -> str:
        """Show it as the name of a test."""
        return f"{self.document}: {self.text[:70]}"

    @property
    def program(self) -> str:
        """Return the program's name; .venv/bin/python is python."""
        return self._words()[0].rpartition("/")[2]

    @property
    def words(self) -> list[str]:
        """Return its arguments."""
        return self._words()[1:]

    def _words(self) -> list[str]:
        """Return the words of the line's first command, without variables before it and redirections behind it."""
        inserted = re.sub(r"\$\([^()]*\)", "VALUE", self.text)
        text = re.split(r"\s(?:[|&;>]|2>)", inserted)[0]
        try:
            words = shlex.split(text, comments=True)
        except ValueError:  # what is quoted goes on in the next line
            words = text.split()
        while words and ASSIGNMENT.fullmatch(words[0]):
            words.pop(0)
        return words[1:] if words[:2] == ["kubectl", "dormouse"] else words


@dataclass(frozen=True, slots=True)
class Block:
    """One block of code."""

    document: str
    number: int
    language: str
    text: str

    def __str__(self) -> str:
        """Show it as the name of a test."""
        return f"{self.document} {self.number} {self.language}"

    def commands(self) -> Iterator[Command]:
        """Yield what is typed: lines with a prompt, or without one those that begin with a program."""
        lines = self.text.replace("\\\n", " ").splitlines()
        has_prompts = any(line.lstrip().startswith("$ ") for line in lines)
        for line in map(str.strip, lines):
            typed = line[2:] if line.startswith("$ ") else "" if has_prompts else line
            if typed and (has_prompts or _begins(typed)) and self.language in {"", "console", "bash", "sh"}:
                yield Command(self.document, typed)


def _begins(line: str) -> bool:
    """Return whether a line begins with a program, after variables, and is no line of a drawing."""
    words = [word for word in line.split() if not ASSIGNMENT.fullmatch(word)]
    return bool(words) and words[0].rpartition("/")[2] in PROGRAMS and "──" not in line


def texts() -> dict[str, str]:
    """Return path → text of all documents."""
    paths = sorted({path for name in NAMES for path in ROOT.glob(name)})
    return {str(path.relative_to(ROOT)): path.read_text("utf-8") for path in paths}


def blocks() -> list[Block]:
    """Return the blocks of all documents; the reference has none."""
    return [
        Block(document, number, fenced["language"], fenced["text"])
        for document, text in texts().items()
        for number, fenced in enumerate(FENCED.finditer(text), 1)
    ]


def in_sentences() -> Iterator[Command]:
    """Yield the commands between backticks, without what they show as left to choice."""
    for document, text in texts().items():
        for span in SPAN.findall(FENCED.sub("", text)):
            words = " ".join(re.sub(r" \[[^]]*\]", "", span).split())
            if _begins(words) and " " in words and not LEFT_OPEN.search(words):
                yield Command(document, words, is_whole=False)


def commands() -> list[Command]:
    """Return the commands of all documents, each once."""
    return list(dict.fromkeys([*(command for block in blocks() for command in block.commands()), *in_sentences()]))
