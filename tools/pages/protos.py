"""docs/reference/grpc.md: every RPC, message and field with its comment, from the .proto files."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import grpc_tools
from google.protobuf import descriptor_pb2 as descriptors
from grpc_tools import protoc

from tools.bootstrap import ROOT
from tools.pages.tables import code, escaped, page, table

FOLDER = "dormouse_api/v1"
_File = descriptors.FileDescriptorProto
_Field = descriptors.FieldDescriptorProto
# numbers of the fields of a FileDescriptorProto and of what is in it, of which the paths of comments consist
_MESSAGE, _ENUM, _SERVICE, _BELOW = 4, 5, 6, 2


@dataclass(frozen=True, slots=True)
class Commented:
    """Something of a .proto file that has a comment, or should have one."""

    name: str
    kind: str  # rpc, field or value
    comment: str


class Comments:
    """The comments of one file, by the path of what they are about."""

    def __init__(self, file: _File) -> None:
        """Read them: those before and those behind belong together."""
        self._found: Mapping[tuple[int, ...], str] = {
            tuple(place.path): " ".join(f"{place.leading_comments} {place.trailing_comments}".split())
            for place in file.source_code_info.location
        }

    def of(self, *path: int) -> str:
        """Return a comment, "" for none."""
        return self._found.get(path, "")


def files() -> list[_File]:
    """Return the compiled .proto files with their comments."""
    api = ROOT / "api"
    names = sorted(str(path.relative_to(api)) for path in (api / FOLDER).glob("*.proto"))
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "all"
        known = Path(grpc_tools.__file__).parent / "_proto"
        flags = ["protoc", f"-I{api}", f"-I{known}", "--include_source_info", f"--descriptor_set_out={out}"]
        failed = protoc.main([*flags, *names])
        assert not failed, "make proto says what is wrong"
        found = descriptors.FileDescriptorSet.FromString(out.read_bytes())
    return list(found.file)


def all_commented(file: _File) -> Iterator[Commented]:
    """Yield whatever of a file needs a comment."""
    comments = Comments(file)
    for i, service in enumerate(file.service):
        for j, method in enumerate(service.method):
            yield Commented(f"{service.name}.{method.name}", "rpc", comments.of(_SERVICE, i, _BELOW, j))
    for i, message in enumerate(file.message_type):
        for j, field in enumerate(message.field):
            yield Commented(f"{message.name}.{field.name}", "field", comments.of(_MESSAGE, i, _BELOW, j))
    for i, enum in enumerate(file.enum_type):
        for j, value in enumerate(enum.value):
            yield Commented(value.name, "value", comments.of(_ENUM, i, _BELOW, j))


def text() -> str:
    """Return the page."""
    return page("gRPC", _INTRODUCTION, *(_file(file) for file in files()))


def _file(file: _File) -> str:
    comments = Comments(file)
    services = [_service(file, comments, i) for i in range(len(file.service))]
    messages = [_message(file, comments, i) for i in range(len(file.message_type))]
    enums = [_enum(file, comments, i) for i in range(len(file.enum_type))]
    return "\n\n".join([f"## {Path(file.name).name}", _head(file), *services, *messages, *enums])


def _head(file: _File) -> str:
    """Return the comment at the top of the file: the one before its `syntax`."""
    return escaped(Comments(file).of(12))


def _service(file: _File, comments: Comments, i: int) -> str:
    rows = (
        (
            code(method.name),
            code(_name(method.input_type)),
            ("a stream of " if method.server_streaming else "") + code(_name(method.output_type)),
            escaped(comments.of(_SERVICE, i, _BELOW, j)),
        )
        for j, method in enumerate(file.service[i].method)
    )
    return f"### service {file.service[i].name}\n\n{table(('RPC', 'Takes', 'Answers', 'What'), rows)}"


def _message(file: _File, comments: Comments, i: int) -> str:
    message = file.message_type[i]
    rows = (
        (code(field.name), str(field.number), _kind(message, field), escaped(comments.of(_MESSAGE, i, _BELOW, j)))
        for j, field in enumerate(message.field)
    )
    about = escaped(comments.of(_MESSAGE, i))
    return "\n\n".join(filter(None, [f"### {message.name}", about, table(("Field", "No.", "Type", "What"), rows)]))


def _enum(file: _File, comments: Comments, i: int) -> str:
    values = file.enum_type[i].value
    rows = ((code(value.name), escaped(comments.of(_ENUM, i, _BELOW, j))) for j, value in enumerate(values))
    about = escaped(comments.of(_ENUM, i))
    return "\n\n".join(filter(None, [f"### {file.enum_type[i].name}", about, table(("Value", "What"), rows)]))


def _kind(message: descriptors.DescriptorProto, field: _Field) -> str:
    """Return a field's type: a name of ours, or protobuf's word for it."""
    entry = next((one for one in message.nested_type if field.type_name.endswith(f".{message.name}.{one.name}")), None)
    if entry is not None and entry.options.map_entry:
        return f"map of {_plain(entry.field[0])} to {_plain(entry.field[1])}"
    many = "list of " if field.label == _Field.LABEL_REPEATED else ""
    return many + _plain(field)


def _plain(field: _Field) -> str:
    return code(_name(field.type_name)) if field.type_name else _Field.Type.Name(field.type)[len("TYPE_") :].lower()


def _name(full: str) -> str:
    return full.removeprefix(".").removeprefix("dormouse.v1.")


_INTRODUCTION = """Package `dormouse.v1`. The files themselves lie in `api/dormouse_api/v1`, beside the generated Python
code. Fields are only added, numbers are never used again. Calls that are refused have a status whose message names the
field, the value and the limit; where a later try may succeed its details hold `google.rpc.RetryInfo`."""
