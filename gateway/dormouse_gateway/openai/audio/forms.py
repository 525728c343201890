"""From a form's bytes, multipart/form-data, to its fields and its one file. Pure; what is wrong is an ApiError."""

from __future__ import annotations

from dataclasses import dataclass, field
from email.message import Message
from typing import TYPE_CHECKING

from python_multipart.exceptions import MultipartParseError
from python_multipart.multipart import MultipartParser

from dormouse_gateway.openai.errors import ApiError

if TYPE_CHECKING:
    from python_multipart.multipart import MultipartCallbacks

FORM = "multipart/form-data"
FILE = "file"
MAX_PARTS = 64
MAX_FIELD_BYTES = 64 << 10


@dataclass(slots=True)
class FilledForm:
    """What a form says. A field whose name ends with [] may come several times."""

    fields: dict[str, str | list[str]] = field(default_factory=dict)
    file: bytes | None = None


def read_form(body: bytes, content_type: str) -> FilledForm:
    """Return the form. Raises ApiError."""
    reader = _Reader()
    try:
        parser = MultipartParser(_boundary(content_type), reader.callbacks())
        parser.write(body)
        parser.finalize()
    except MultipartParseError as error:
        raise ApiError(400, f"the body is no {FORM}: {error}") from error
    if not reader.is_complete:
        raise ApiError(400, f"the body is no whole {FORM}: its last part is cut off")
    return reader.form


def _boundary(content_type: str) -> bytes:
    """Return what divides the parts. Raises ApiError for another type."""
    said = Message()
    said["content-type"] = content_type
    boundary = said.get_param("boundary")
    if said.get_content_type() != FORM or not isinstance(boundary, str) or not boundary:
        raise ApiError(415, f"content-type is {content_type[:200]!r}; allowed: {FORM} with a boundary")
    return boundary.encode("latin-1", "replace")


class _Reader:
    """Takes the parser's pieces. Every limit is checked as they come."""

    def __init__(self) -> None:
        self.form = FilledForm()
        self.is_complete = False
        self._num_parts = 0
        self._header = bytearray()
        self._value = bytearray()
        self._name = self._content = bytearray()
        self._disposition = ""
        self._is_file = False

    def callbacks(self) -> MultipartCallbacks:
        """Return what the parser calls."""
        return {
            "on_part_begin": self._begin,
            "on_header_field": self._take_header,
            "on_header_value": self._take_value,
            "on_header_end": self._end_header,
            "on_headers_finished": self._end_headers,
            "on_part_data": self._take_data,
            "on_part_end": self._end,
            "on_end": self._finish,
        }

    def _begin(self) -> None:
        self._num_parts += 1
        if self._num_parts > MAX_PARTS:
            raise ApiError(400, f"the form has more than {MAX_PARTS} parts; the limit is {MAX_PARTS}")
        self._disposition, self._content = "", bytearray()

    def _take_header(self, data: bytes, start: int, end: int) -> None:
        self._header += data[start:end]  # how long it may be is the parser's to say

    def _take_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _end_header(self) -> None:
        if self._header.lower() == b"content-disposition":
            self._disposition = self._value.decode("utf-8", "replace")
        self._header, self._value = bytearray(), bytearray()

    def _end_headers(self) -> None:
        said = Message()
        said["content-disposition"] = self._disposition
        name = said.get_param("name", header="content-disposition")
        if not isinstance(name, str) or not name:
            raise ApiError(400, "a part of the form has no name")
        self._field = name
        self._is_file = said.get_filename() is not None
        if self._is_file != (name == FILE):
            what = "a file" if self._is_file else "no file"
            raise ApiError(400, f"{name} is {what}; {FILE} has to be one, and nothing else", param=name)
        if self._is_file and self.form.file is not None:
            raise ApiError(400, f"{FILE} is given twice; allowed is one", param=FILE)

    def _take_data(self, data: bytes, start: int, end: int) -> None:
        self._content += memoryview(data)[start:end]
        if not self._is_file and len(self._content) > MAX_FIELD_BYTES:
            words = f"{self._field} has more than {MAX_FIELD_BYTES} bytes; that is the limit"
            raise ApiError(400, words, param=self._field)

    def _end(self) -> None:
        if self._is_file:
            self.form.file, self._content = bytes(self._content), bytearray()
            return
        self._keep(self._field, self._text())

    def _keep(self, name: str, text: str) -> None:
        fields = self.form.fields
        if not name.endswith("[]"):
            if name in fields:
                raise ApiError(400, f"{name} is given twice; allowed is once", param=name)
            fields[name] = text
            return
        known = fields.setdefault(name.removesuffix("[]"), [])
        if isinstance(known, str):
            raise ApiError(400, f"{name} is given twice; allowed is once", param=name)
        known.append(text)

    def _text(self) -> str:
        try:
            return self._content.decode()
        except UnicodeDecodeError as error:
            raise ApiError(400, f"{self._field} is no UTF-8", param=self._field) from error

    def _finish(self) -> None:
        self.is_complete = True
