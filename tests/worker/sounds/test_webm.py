"""Opus of webm files, as browsers record them, is heard as that of ogg files is; what is odd is refused."""

import io

import numpy as np
import pytest
import soundfile
from hypothesis import given, settings
from hypothesis import strategies as st

from dormouse_worker.sounds.decoding import BadSound, SoundLimits, open_sound, seconds_of_samples
from dormouse_worker.sounds.webm import WebmRefused, as_ogg

RATE_HZ = 48_000
LIMITS = SoundLimits(max_seconds=10)
SECONDS = 3


def ogg(seconds=SECONDS, channels=1):
    sound = np.random.default_rng(0).standard_normal((RATE_HZ * seconds, channels)) * 0.1
    file = io.BytesIO()
    soundfile.write(file, sound, RATE_HZ, format="OGG", subtype="OPUS")
    return file.getvalue()


def packets_of(pages):
    """Return the packets of an Ogg file."""
    packets, begun, at = [], b"", 0
    while at < len(pages):
        sizes = pages[at + 27 : at + 27 + pages[at + 26]]
        at += 27 + len(sizes)
        for size in sizes:
            begun += pages[at : at + size]
            at += size
            if size < 255:
                packets.append(begun)
                begun = b""
    return packets


def element(kind, payload, *, is_unknown=False):
    size = b"\x01" + b"\xff" * 7 if is_unknown else (len(payload) | 1 << 56).to_bytes(8, "big")
    return kind.to_bytes(-(-kind.bit_length() // 8), "big") + size + payload


def webm(pages, *, codec=b"A_OPUS", flags=0x80, is_live=True, entry=b"", in_groups=False, packets=None):
    """Return a WebM file of an Ogg file's packets; a live one says nothing of its sizes."""
    head, _, *there = packets_of(pages)
    track = element(0xD7, b"\1") + element(0x83, b"\2") + element(0x86, codec) + element(0x63A2, head) + entry
    picture = element(0xAE, element(0xD7, b"\2") + element(0x86, b"V_VP8"))
    others = element(0xA3, b"\x82\0\0\x80picture")
    bodies = [b"\x81\0\0" + bytes([flags]) + packet for packet in packets or there]
    blocks = [element(0xA0, element(0xA1, body)) if in_groups else element(0xA3, body) for body in bodies]
    cluster = element(0x1F43B675, element(0xE7, b"\0") + others + b"".join(blocks), is_unknown=is_live)
    tracks = element(0x1654AE6B, picture + element(0xAE, track))
    return element(0x1A45DFA3, element(0x4282, b"webm")) + element(0x18538067, tracks + cluster, is_unknown=is_live)


@pytest.fixture
def hear(tmp_path):
    """Return a function that returns all samples of a file."""

    def heard(contents, limits=LIMITS):
        (tmp_path / "sound").write_bytes(contents)
        with open_sound(tmp_path / "sound", limits) as opened:
            return np.concatenate(list(seconds_of_samples(opened, limits)))

    return heard


@pytest.mark.parametrize("how", [{}, {"is_live": False}, {"in_groups": True}])
def test_what_is_heard_is_that_of_the_packets(hear, how):
    pages = ogg(channels=2)
    wanted, found = hear(pages), hear(webm(pages, **how))
    assert np.array_equal(found[: len(wanted)], wanted)
    assert 0 <= len(found) - len(wanted) < 0.02 * RATE_HZ  # what fills up the last packet


def test_a_recording_that_was_cut_is_heard_up_to_there(hear):
    contents = webm(ogg())
    found = hear(contents[: len(contents) // 2])
    assert 0.4 * SECONDS * RATE_HZ < len(found) < 0.6 * SECONDS * RATE_HZ


def test_one_that_lasts_too_long_is_refused_before_it_is_decoded(hear):
    with pytest.raises(BadSound, match=r"it lasts 3\.0 seconds; allowed: 2 seconds"):
        hear(webm(ogg()), SoundLimits(max_seconds=2))


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"codec": b"A_VORBIS"}, "its tracks are of the kinds 'A_VORBIS', 'V_VP8'; allowed in a webm is A_OPUS"),
        ({"flags": 0x82}, "its blocks are laced"),
        ({"entry": element(0x6D80, b"")}, "is compressed once more"),
        ({"entry": element(0x63A2, b"other")}, "has no OpusHead"),
        ({"entry": element(0x63A2, b"OpusHead" + bytes(1 << 17))}, "has no OpusHead"),
    ],
)
def test_what_is_not_read_is_refused_by_name(hear, how, words):
    with pytest.raises(BadSound, match=words):
        hear(webm(ogg(1), **how))


def test_a_file_without_packets_has_no_samples(hear):
    contents = webm(ogg(1))
    with pytest.raises(BadSound, match="it has no samples"):
        hear(contents[: contents.index(b"\x1f\x43\xb6\x75")])


def test_more_elements_than_any_sound_has_are_not_read():
    with pytest.raises(WebmRefused, match="it has more elements than 8"):
        as_ogg(webm(ogg(1)), most_elements=8)


@pytest.mark.parametrize(("packet", "words"), [(b"\x03", "lasts 0 samples"), (b"\x1b\x3f", "lasts 181440 samples")])
def test_packets_of_no_length_are_refused(packet, words):
    with pytest.raises(WebmRefused, match=words):
        as_ogg(webm(ogg(1), packets=[packet]))


WHOLE = webm(ogg(1))
PLACES = st.integers(0, len(WHOLE) - 1)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(PLACES, st.integers(0, 255)), max_size=12), PLACES)
def test_damage_is_heard_or_refused(changes, end):
    damaged = bytearray(WHOLE)
    for at, byte in changes:
        damaged[at] = byte
    try:
        made = as_ogg(bytes(damaged[:end]))
    except WebmRefused:
        return
    assert made.startswith(b"OggS")
