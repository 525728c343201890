"""Renders the model's own chat template, as transformers' `apply_chat_template` would. Knows no tokens, no gRPC.

The environment has the names that templates in the wild rely on: the filter `tojson` without HTML escapes, the
functions `raise_exception` and `strftime_now`, `break` and `continue`, and the `generation` block, which only marks.
It is sandboxed: a template comes with a model and its variables come from users. It may take any time and memory all
the same, so only `template_process` compiles and renders; the front itself only looks whether it is a template.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

DEFAULT, TOOL_USE = "default", "tool_use"
_END_MARK = "CONTINUE_FINAL_MESSAGE_TAG "  # stands behind the final message while it is rendered; transformers' own
OWN_VARIABLES = ("messages", "tools", "add_generation_prompt")  # a caller's template_args cannot replace these


class TemplateRefused(Exception):
    """The chat cannot be rendered; the message is for the caller."""


class GenerationBlock(Extension):
    """`{% generation %}…{% endgeneration %}` marks an assistant's words for training; here it renders its body."""

    tags = frozenset({"generation"})  # type: ignore[assignment]  # jinja2 only asks what is in it

    def parse(self, parser: Parser) -> nodes.Node:
        """Return the body in a scope of its own, as the block has it in transformers."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_render"), [], [], body).set_lineno(line)

    def _render(self, caller: Callable[[], str]) -> str:
        return caller()


class PublicNamespace(Namespace):
    """A `namespace` that takes no names with a leading underscore: they lead to Python's internals."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        self, *pairs = args
        values = dict(*pairs, **kwargs)
        for name in values:
            _check_public(name)
        Namespace.__init__(self, values)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_public(name)
        super().__setitem__(name, value)


class _MakeDict:
    """`dict(...)` and `dict.fromkeys(...)` and no other attribute of the type."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)


class ChatTemplates:
    """A model's templates by name, compiled once."""

    def __init__(
        self,
        sources: Mapping[str, str],
        special_tokens: Mapping[str, str],
        *,
        now: Callable[[], datetime],
        max_chars: int,
        wants_parts: bool = False,
    ) -> None:
        """Compile, which computes what is constant in them. Raises TemplateRefused if one is no template."""
        environment = _environment(now)
        self._max_chars = max_chars  # of a rendered text
        self._wants_parts = wants_parts  # text, too, is a list of parts: templates of models that see pass over others
        self._special_tokens = dict(special_tokens)
        self._templates = {name: _compile(environment, name, source) for name, source in sources.items()}

    def __repr__(self) -> str:
        return f"ChatTemplates({', '.join(self._templates) or 'none'})"

    def __bool__(self) -> bool:
        """Return whether the model has any template."""
        return bool(self._templates)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None,
        add_generation_prompt: bool,
        template_args: Mapping[str, Any],
        continue_final_message: bool = False,
    ) -> str:
        """Return the rendered text, up to the end of the final message's text where that is to be gone on with.

        Raises TemplateRefused with the template's own words, if it has any.
        """
        template = self._templates[choose(self._templates, with_tools=tools is not None)]
        variables = {"documents": None, **self._special_tokens, **template_args}
        turns = _with_end_mark(messages) if continue_final_message else [dict(each) for each in messages]
        try:
            pieces = template.generate(
                messages=list(map(_in_parts, turns)) if self._wants_parts else turns,
                tools=None if tools is None else [dict(tool) for tool in tools],
                add_generation_prompt=add_generation_prompt,
                **variables,
            )
            text = _join(pieces, self._max_chars)
            return _until_end_mark(text, messages[-1]["content"]) if continue_final_message else text
        except TemplateRefused:
            raise
        except jinja2.TemplateError as error:
            raise TemplateRefused(f"the model's chat template refused it: {error.message}") from error
        except Exception as error:  # a template is a program: it can fail in any way
            raise TemplateRefused(f"the model's chat template failed: {type(error).__name__}: {error}") from error


def choose(names: Collection[str], *, with_tools: bool) -> str:
    """Return the name of the template for a chat. Raises TemplateRefused where there is none."""
    if with_tools and TOOL_USE in names:
        return TOOL_USE
    if DEFAULT in names:
        return DEFAULT
    if not names:
        raise TemplateRefused("the model has no chat template; use text or token_ids")
    raise TemplateRefused(f"the model has no default chat template, only {', '.join(sorted(names))}")


def check_templates(sources: Mapping[str, str]) -> None:
    """Raise TemplateRefused naming the template and the line if one is no template. Computes nothing of them."""
    environment = _environment(datetime.now)
    environment.optimized = False
    environment.finalize = _leave_constants
    for name, source in sources.items():
        try:
            environment.compile(source, raw=True)
        except jinja2.TemplateSyntaxError as error:
            raise _broken(name, error) from error
        except RecursionError as error:
            raise TemplateRefused(f"the model's chat template {name!r} is nested too deep") from error


@jinja2.pass_context
def _leave_constants(context: jinja2.runtime.Context, value: Any) -> Any:
    """Show jinja a finalizer that needs a context: then no expression is computed while a template is compiled."""
    del context  # never called
    return value


def read_template_sources(model_path: Path, tokenizer_config: Mapping[str, Any]) -> dict[str, str]:
    """Return the model's templates by name: *.jinja files, else those in tokenizer_config.json; {} if none."""
    sources = {}
    if (model_path / "chat_template.jinja").is_file():
        sources[DEFAULT] = (model_path / "chat_template.jinja").read_text(encoding="utf-8")
    for file in sorted((model_path / "additional_chat_templates").glob("*.jinja")):
        sources[file.stem] = file.read_text(encoding="utf-8")
    if sources:
        return sources
    inline = tokenizer_config.get("chat_template")
    if isinstance(inline, str):
        return {DEFAULT: inline}
    if isinstance(inline, Mapping):
        return {str(name): str(source) for name, source in inline.items()}
    return {str(item["name"]): str(item["template"]) for item in inline or ()}


def _environment(now: Callable[[], datetime]) -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationBlock, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals.update(
        raise_exception=_raise_exception,
        strftime_now=lambda pattern: now().strftime(pattern),
        dict=_MakeDict(),
        namespace=PublicNamespace,
    )
    return environment


def _join(pieces: Iterator[str], max_chars: int) -> str:
    """Return the text. Raises TemplateRefused where it is too long."""
    text, num_chars = [], 0
    for piece in pieces:
        num_chars += len(piece)
        if num_chars > max_chars:
            raise TemplateRefused(f"the model's chat template makes more than {max_chars} characters of this chat")
        text.append(piece)
    return "".join(text)


def _with_end_mark(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    *before, final = (dict(message) for message in messages)
    return [*before, final | {"content": final["content"] + _END_MARK}]


def _in_parts(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return the turn with its text as a list of one part."""
    content = message.get("content")
    return {**message, "content": [{"type": "text", "text": content}] if isinstance(content, str) else content}


def _until_end_mark(text: str, content: str) -> str:
    """Return what stands before the mark, cut as transformers does: with its last spaces unless the template trims."""
    at = text.rfind(_END_MARK.strip())
    if at < 0 or content.strip() not in text:
        why = "the model's chat template leaves something of the final message out: nothing can go on with it"
        raise TemplateRefused(why)
    return text[:at] if text.startswith(_END_MARK, at) else text[:at].rstrip()


def _compile(environment: ImmutableSandboxedEnvironment, name: str, source: str) -> jinja2.Template:
    try:
        return environment.from_string(source)
    except jinja2.TemplateSyntaxError as error:
        raise _broken(name, error) from error


def _broken(name: str, error: jinja2.TemplateSyntaxError) -> TemplateRefused:
    return TemplateRefused(f"the model's chat template {name!r} is broken in line {error.lineno}: {error}")


def _to_json(
    value: Any,
    ensure_ascii: bool = False,  # noqa: FBT001, FBT002
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,  # noqa: FBT001, FBT002
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _check_public(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError(f"namespace attribute {name!r} begins with an underscore")
