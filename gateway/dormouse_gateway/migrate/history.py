"""What clients have got of their live streams, as raw messages. Owns the room for it; reads nothing of it.

A stream that outgrows its room, or finds the common room taken, is *cut*: it goes on, but cannot move any more.
"""

from __future__ import annotations

_OVERHEAD_BYTES = 48  # of a bytes object and its place in a list


class ByteBudget:
    """Bytes that all streams share."""

    def __init__(self, *, total_bytes: int, stream_bytes: int) -> None:
        """Take what all may keep together, and what each may."""
        self.stream_bytes = stream_bytes
        self.used_bytes = 0
        self._total_bytes = total_bytes

    def __repr__(self) -> str:
        """Show how full it is."""
        return f"ByteBudget({self.used_bytes} of {self._total_bytes} bytes)"

    def take(self, size: int) -> bool:
        """Take so many bytes; False, and nothing taken, if they are not there."""
        if self.used_bytes + size > self._total_bytes:
            return False
        self.used_bytes += size
        return True

    def give_back(self, size: int) -> None:
        """Return what was taken."""
        assert size <= self.used_bytes, "only what was taken is given back"
        self.used_bytes -= size


class History:
    """One stream's messages. To be entered: its room is given back however the stream ends."""

    def __init__(self, room: ByteBudget) -> None:
        """Begin with none."""
        self._room = room
        self._size = 0
        self._reserved = 0  # of the size, what no message has taken yet
        self.messages: list[bytes] = []
        self.ending = b""  # the message, kept from the client, by which its worker gave the stream up
        self.last = b""  # the message that came last, kept in any case
        self.num_messages = 0
        self.is_cut = False

    def __repr__(self) -> str:
        """Show the size."""
        return f"History({self.num_messages} messages, {self._size} bytes{', cut' if self.is_cut else ''})"

    def __enter__(self) -> History:
        """Return the history."""
        return self

    def __exit__(self, *_: object) -> None:
        """Give the room back."""
        self._release()

    def reserve(self, size: int) -> bool:
        """Take room for messages to come; False, and nothing taken, if it is not there."""
        is_there = size <= self._room.stream_bytes and self._room.take(size)
        if is_there:
            self._size = self._reserved = size
        return is_there

    def add(self, raw: bytes) -> None:
        """Keep a message that the client has got."""
        self.num_messages += 1
        self.last = raw
        if self.is_cut:
            return
        size = len(raw) + _OVERHEAD_BYTES
        used = min(size, self._reserved)
        self._reserved -= used
        size -= used
        if self._size + size > self._room.stream_bytes or not self._room.take(size):
            self.is_cut = True
            self._release()
            return
        self._size += size
        self.messages.append(raw)

    def take_messages(self) -> list[bytes]:
        """Return all messages, to be read; keeps none, but the room: what is read of them is kept instead."""
        taken, self.messages = self.messages, []
        return taken

    def _release(self) -> None:
        self._room.give_back(self._size)
        self._size = self._reserved = 0
        self.messages.clear()
