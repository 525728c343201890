"""What a GGUF header may say, and what it is told if it says something else. Without torch."""

import contextlib
import random
import struct
import tracemalloc
from collections.abc import Callable

import gguf
import numpy as np
import pytest

from dormouse_worker.common.errors import ModelInvalid, ModelNotFound, WorkerError
from dormouse_worker.files.gguf.folder import make_directory
from dormouse_worker.files.gguf.header import Strings, read_gguf
from tests.worker.files.gguf.kit import write

HUGE = 1 << 60
BASE_BYTES = 1 << 20  # of Python's own, whatever the file


def key(name: str, kind: int, value: bytes) -> bytes:
    return text(name) + struct.pack("<I", kind) + value


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def tensor(name: str = "a", shape: tuple[int, ...] = (4,), kind: int = 0, offset: int = 0) -> bytes:
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)


@pytest.fixture
def lay(tmp_path):
    """Return a function (keys, tensors, …) → file."""

    def lay_file(keys=(), tensors=(), *, version=3, counts=None, num_bytes=64, magic=b"GGUF"):
        num_tensors, num_keys = counts or (len(tensors), len(keys))
        head = magic + struct.pack("<IQQ", version, num_tensors, num_keys) + b"".join([*keys, *tensors])
        file = tmp_path / "model.gguf"
        file.write_bytes(head + bytes(-len(head) % 32) + bytes(num_bytes))
        return file

    return lay_file


def test_it_is_what_the_formats_own_reader_says(tmp_path):
    file = write(tmp_path / "m.gguf", types={"": "Q8_0", "blk.0.attn_q.weight": "F16", "token_embd.weight": "Q4_0"})
    ours, theirs = read_gguf(file), gguf.GGUFReader(file)
    assert ours.tensors.keys() == {one.name for one in theirs.tensors}
    for one in theirs.tensors:
        found = ours.tensors[one.name]
        assert (found.dtype, found.shape[::-1]) == (one.tensor_type.name, tuple(one.shape))
        assert file.read_bytes()[found.start : found.end] == one.data.tobytes()
    told = {name: field.contents() for name, field in theirs.fields.items() if not name.startswith("GGUF.")}
    assert {
        name: list(v) if hasattr(v, "__len__") and not isinstance(v, str) else v for name, v in ours.metadata.items()
    } == told


def test_kinds_of_values_and_an_alignment_of_the_files_own(lay):
    keys = [
        key("flag", 7, b"\1"),
        key("small", 1, b"\xff"),
        key("numbers", 9, struct.pack("<IQ3h", 3, 3, 1, -2, 3)),
        key("words", 9, struct.pack("<IQ", 8, 2) + text("ä") + text("")),
        key("general.alignment", 4, struct.pack("<I", 64)),
    ]
    found = read_gguf(lay(keys, [tensor("a"), tensor("b", offset=64)], num_bytes=128 + 64))
    words = found.metadata["words"]
    assert (found.metadata["flag"], found.metadata["small"], list(found.metadata["numbers"])) == (True, -1, [1, -2, 3])
    assert isinstance(words, Strings)
    assert (list(words), len(words), repr(words)) == (["ä", ""], 2, "Strings(words, 2)")
    assert [one.start % 64 for one in found.tensors.values()] == [0, 0]


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"magic": b"GGML"}, "does not begin with GGUF"),
        ({"version": 1}, "is GGUF of version 1; read are 2 and 3"),
        ({"version": 3 << 24}, "of processors that put the low byte first"),
        ({"counts": (HUGE, 0)}, f"has {HUGE} tensors, and"),
        ({"counts": (0, HUGE)}, f"has {HUGE} keys, and"),
        ({"keys": [struct.pack("<Q", 1 << 40)]}, f"has a key of {1 << 40} bytes; at most 65536"),
        ({"keys": [key("a", 8, struct.pack("<Q", 1 << 40))]}, f"truncated or damaged: a takes {1 << 40} bytes"),
        ({"keys": [key("a", 8, struct.pack("<Q", 1) + b"\xff")]}, "a is no UTF-8"),
        ({"keys": [key("a", 13, b"")]}, "has the key 'a' of an unknown type 13"),
        ({"keys": [key("a", 7, b"\1"), key("a", 7, b"\1")]}, "has the key 'a' twice"),
        ({"keys": [key("a", 9, struct.pack("<IQ", 9, 1))]}, "an array of the type 9, which is not read"),
        ({"keys": [key("a", 9, struct.pack("<IQ", 8, HUGE))]}, f"has {HUGE} strings in a"),
        ({"keys": [key("a", 9, struct.pack("<IQ", 10, HUGE))]}, f"has {HUGE} numbers in a"),
        ({"keys": [key("a", 9, struct.pack("<IQQ", 8, 1, HUGE))]}, f"a takes {HUGE} bytes"),
        (
            {"keys": [key("general.alignment", 4, struct.pack("<I", 3))]},
            "general.alignment is 3; allowed: powers of two",
        ),
        ({"keys": [key("general.alignment", 8, text("x"))]}, "general.alignment is x"),
        ({"tensors": [tensor("n" * 257)]}, "has a tensor's name of 257 bytes; at most 256"),
        ({"tensors": [tensor(shape=())]}, "tensor 'a' has 0 dimensions; 1 to 4"),
        ({"tensors": [tensor(shape=(1,) * 5)]}, "has 5 dimensions"),
        ({"tensors": [tensor(shape=(4, 0))]}, r"is F32 \[4, 0\], whose rows are no blocks of 1"),
        ({"tensors": [tensor(shape=(48,), kind=2)]}, r"is Q4_0 \[48\], whose rows are no blocks of 32"),
        ({"tensors": [tensor(kind=23)]}, "is of type IQ4_XS; read are F32, F16"),
        ({"tensors": [tensor(kind=99)]}, "is of type 99"),
        ({"tensors": [tensor(shape=(HUGE, HUGE))]}, "truncated or damaged: tensor 'a' ends at byte"),
        ({"tensors": [tensor(), tensor("b", offset=16)]}, "tensor 'b' shares bytes with another tensor"),
        ({"tensors": [tensor(), tensor("b", offset=HUGE)]}, "tensor 'b' begins behind a gap"),
        ({"tensors": [tensor(), tensor(offset=32)]}, "has two tensors 'a'"),
    ],
)
def test_what_does_not_add_up_is_named(lay, parts, message):
    with pytest.raises(ModelInvalid, match=message):
        read_gguf(lay(**parts))


def test_a_string_of_an_array_that_is_no_text_is_named_when_it_is_asked_for(lay):
    found = read_gguf(lay([key("a", 9, struct.pack("<IQQ", 8, 1, 1) + b"\xff")]))
    with pytest.raises(ModelInvalid, match=r"a \[0\] is no UTF-8"):
        list(found.metadata["a"])


def test_files_that_are_not_there_or_no_files(tmp_path):
    with pytest.raises(ModelNotFound, match=r"no such file; check spec\.model\.uri"):
        read_gguf(tmp_path / "m.gguf")
    with pytest.raises(ModelInvalid, match="cannot be read"):
        read_gguf(tmp_path)


@pytest.mark.parametrize("end", range(0, 300, 7))
def test_a_file_that_was_cut_anywhere_is_refused(lay, end):
    file = lay(
        [key("words", 9, struct.pack("<IQ", 8, 2) + text("one") + text("two"))],
        [tensor(), tensor("b", (40,), 0, 32)],
        num_bytes=192,
    )
    raw = file.read_bytes()
    file.write_bytes(raw[: min(end, len(raw) - 1)])
    with pytest.raises(ModelInvalid):
        read_gguf(file)


def mutated(raw: bytes, draw: random.Random) -> bytes:
    """Return a file of which some bytes, a length or the end are others."""
    changed = bytearray(raw)
    for _ in range(draw.randint(1, 4)):
        place = draw.randrange(len(changed))
        how = draw.randrange(4)
        if how == 0:
            changed[place] = draw.randrange(256)
        elif how == 1:
            changed[place : place + 8] = struct.pack("<Q", draw.choice((0, 1, 2**31, 2**40, 2**63, 2**64 - 1)))
        elif how == 2:
            changed[place : place + 4] = struct.pack("<I", draw.choice((0, 8, 9, 255, 2**32 - 1)))
        else:
            del changed[place : place + draw.randint(1, 40)]
    return bytes(changed)


def fuzz(tmp_path, seeds: range, check: Callable[[bytes], None] = lambda _: None) -> int:
    """Read so many mutations; return how many were refused. Whatever else than a refusal is raised ends the test."""
    raw = write(tmp_path / "m.gguf", types={"": "Q8_0"}).read_bytes()
    header = raw[: read_gguf(tmp_path / "m.gguf").header_bytes]
    refused = 0
    for seed in seeds:
        draw = random.Random(seed)
        file = tmp_path / "mutated.gguf"
        file.write_bytes(mutated(header, draw) + raw[len(header) :])
        tracemalloc.start()
        try:
            read_gguf(file)
        except WorkerError:
            refused += 1
        finally:
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
        assert peak < file.stat().st_size + BASE_BYTES, f"seed {seed} took {peak} bytes"
        check(file.read_bytes())
    return refused


def test_mutations_are_read_or_refused_and_take_no_memory(tmp_path):
    assert fuzz(tmp_path, range(200)) > 60


@pytest.mark.slow
def test_ten_thousand_mutations_are_read_or_refused_and_take_no_memory(tmp_path):
    assert fuzz(tmp_path, range(1000, 11_000)) > 3000


def test_mutations_that_are_read_make_a_directory_or_are_refused(tmp_path):
    made = []

    def check(_: bytes) -> None:
        with contextlib.suppress(WorkerError):
            made.append(make_directory(tmp_path / "mutated.gguf", tmp_path / "cache"))

    fuzz(tmp_path, range(20_000, 20_060), check)
    assert len(made) < 60


def test_numbers_are_what_numpy_reads(lay):
    values = np.array([1.5, -2.0], dtype="<f8")
    found = read_gguf(lay([key("a", 9, struct.pack("<IQ", 12, 2) + values.tobytes())]))
    assert list(found.metadata["a"]) == [1.5, -2.0]
