"""Which images' rows the ranks hold, and for whom. Named by digest, bounded in rows, the longest unused goes first.

A request needs an image's rows from the pass that computes the first of its tokens to the one that computes the last:
so long they are held for it. Rows that nobody needs stay for later requests as long as there is room; what a known
prefix covers needs no rows at all. Ranks free and encode in the order in which they are told.

A sleep may leave the rows in host memory. Then the books stay, too, though the ranks forget everything else.

One image may be encoded between passes, for a request that waits. It has its room from the beginning, but nobody holds
it: who is in the middle of another image may need the room more.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from dormouse_worker.common.images import ImageInput
from dormouse_worker.engine.batch import Batch, EncodeImage
from dormouse_worker.engine.images.pace import Pace
from dormouse_worker.engine.request import Request


class EncoderCache:
    """Owns the books; the rows are the ranks'."""

    def __init__(self, num_rows: int = 0, *, are_whole: bool = False) -> None:
        """`num_rows` 0 = the model reads no images; `are_whole`: an image's tokens are computed in one pass."""
        self.num_rows = num_rows
        self.are_whole = are_whole
        self._rows: OrderedDict[bytes, int] = OrderedDict()  # longest unused first
        self._users: dict[bytes, set[str]] = {}  # ids of requests that are in the middle of the image
        self._freed: list[bytes] = []  # the ranks are yet to be told
        self.ahead: EncodeImage | None = None  # under way between passes
        self._ahead_for = ""  # the request that waits for it
        self._outlives = False  # the ranks sleep, and have kept the rows
        self._outlived: tuple[bytes, ...] = ()  # the ranks are yet to be told that they have them still
        self.num_encoded = 0  # since the start
        self.pace = Pace()

    def __repr__(self) -> str:
        return f"EncoderCache({len(self._rows)} images, {sum(self._rows.values())} of {self.num_rows} rows)"

    def holds(self, digest: bytes) -> bool:
        """Return whether the ranks have the image's rows, or will have them before the next pass."""
        return digest in self._rows and not self._is_ahead(digest)

    def kept(self, needed: Iterable[bytes]) -> dict[bytes, int]:
        """Return the images that may not go, by what they take: those that are held for somebody, and those needed."""
        return {digest: self._rows[digest] for digest in self._users.keys() | needed if digest in self._rows}

    def put(self, image: ImageInput, needed: Iterable[bytes]) -> EncodeImage:
        """Let the ranks encode an image for which there is room, or the rest of it; others make way, unless kept."""
        if self.ahead is not None and self._is_ahead(image.digest):
            under_way, self.ahead = self.ahead, None
            return under_way
        kept = self.kept(needed)
        unused = [digest for digest in self._rows if digest not in kept]
        while sum(self._rows.values()) + image.num_rows > self.num_rows:
            self._free(unused.pop(0))
        self._rows[image.digest] = image.num_rows
        self.num_encoded += 1
        return EncodeImage(image.digest, image.tensors, image.num_bytes, image.num_rows, image.grid)

    def begin(self, request: Request, image: ImageInput, needed: Iterable[bytes]) -> None:
        """Let the ranks encode an image between passes from now on, for a request that waits, if there is room."""
        if sum(self.kept(needed).values()) + image.num_rows > self.num_rows:
            return
        self.ahead, self._ahead_for = self.put(image, needed), request.request_id
        request.encoded_ahead += (image.digest,)

    def finish(self, digests: Iterable[bytes]) -> None:
        """The ranks have the rows of these, which were under way between passes."""
        for digest in digests:
            if self._is_ahead(digest):
                self.ahead = None

    def note_pass(self, batch: Batch, seconds: float) -> None:
        """A pass took so long."""
        if self.num_rows:
            self.pace.note(batch, seconds)

    def hold(self, digest: bytes, request_id: str) -> None:
        """Keep the rows until `release`."""
        self._rows.move_to_end(digest)
        self._users.setdefault(digest, set()).add(request_id)

    def release(self, request_id: str, images: Iterable[ImageInput]) -> None:
        """The request needs these no longer, if it did at all, and waits for none."""
        if self.ahead is not None and self._ahead_for == request_id:
            self._free(self.ahead.digest)
        self.let_go(request_id, images)

    def let_go(self, request_id: str, images: Iterable[ImageInput]) -> None:
        """The request needs these no longer, if it did at all."""
        for image in images:
            users = self._users.get(image.digest, set())
            users.discard(request_id)
            if not users:
                self._users.pop(image.digest, None)

    def forget(self, digest: bytes) -> None:
        """What the ranks hold under this name means nothing."""
        if digest in self._rows:  # it may have made way since
            self._free(digest)
        self._users.pop(digest, None)

    def sleep(self, *, keeps: bool) -> None:
        """The ranks sleep, with nothing running: their rows outlive it, or are gone."""
        self._outlives = keeps
        if not keeps:
            self.reset()

    def reset(self) -> None:
        """The ranks hold nothing any more, but for what has outlived a sleep."""
        if not self._outlives:
            self._rows.clear()
        self._outlives, self._outlived = False, tuple(self._rows)
        self._users.clear()
        self._freed.clear()
        self.ahead = None

    def clear(self) -> None:
        """Free what nobody needs."""
        for digest in [digest for digest in self._rows if digest not in self._users]:
            self._free(digest)

    def take_known(self) -> tuple[bytes, ...]:
        """Return what the ranks are to keep when they forget all else; then `take_freed` may name some of it."""
        known, self._outlived = self._outlived, ()
        return known

    def take_freed(self) -> tuple[bytes, ...]:
        """Return what the ranks are to free before they encode."""
        freed, self._freed = tuple(self._freed), []
        return freed

    def check_integrity(self, unfinished: Iterable[Request]) -> None:
        """Recount rows and users. Raises RuntimeError with the numbers."""
        num_rows = sum(self._rows.values())
        known = {request.request_id for request in unfinished}
        strays = sorted(user for users in self._users.values() for user in users if user not in known)
        if num_rows > self.num_rows or strays:
            raise RuntimeError(f"{num_rows} of {self.num_rows} rows of images are held, some for {strays}: {self!r}")

    def _is_ahead(self, digest: bytes) -> bool:
        return self.ahead is not None and self.ahead.digest == digest

    def _free(self, digest: bytes) -> None:
        if self._is_ahead(digest):
            self.ahead = None
        del self._rows[digest]
        self._freed.append(digest)
