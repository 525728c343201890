"""Rows of images in host memory, while no runner holds them. Reads none, and knows no books."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from dormouse_worker.common.errors import InsufficientMemory
from dormouse_worker.model.device.arena import ALIGNMENT_BYTES, Arena, round_up
from dormouse_worker.model.device.device import Device
from dormouse_worker.model.device.driver import DeviceOutOfMemory
from dormouse_worker.model.memory.arithmetic import gib
from dormouse_worker.model.tensors import Tensor, bytes_of, zeros


class KeptImages:
    """Owns copies of rows, behind each other in an arena. Where there is one memory it has the rows themselves."""

    def __init__(self, rows: Mapping[bytes, Tensor], device: Device) -> None:
        """Copy the rows out. Raises InsufficientMemory with the numbers; any error leaves nothing held."""
        self._device = device
        self._rows = dict(rows)
        self._arena: Arena | None = None
        if self._rows and device.copies is not None:
            self._copy_out(Arena("kept_images", device.copies, sum(size for _, size in self._places())))

    def __repr__(self) -> str:
        return f"KeptImages({len(self._rows)} images, {self._arena!r})"

    @property
    def num_bytes(self) -> int:
        """Return the host memory held."""
        return sum(rows.nbytes for rows in self._rows.values()) if self._arena is None else self._arena.size_bytes

    def back(self) -> dict[bytes, Tensor]:
        """Return the rows where the device computes; what is kept stays."""
        if self._arena is None:
            return dict(self._rows)
        found = {}
        for digest, copy in self._rows.items():
            found[digest] = zeros(copy.shape, copy.dtype, self._device.torch_device)
            self._device.copy(bytes_of(found[digest]), bytes_of(copy))
        return found

    def close(self) -> None:
        """Let go of all of them. Safe to call twice."""
        self._rows = {}
        if self._arena is not None:
            self._arena.close()
            self._arena = None

    def _copy_out(self, arena: Arena) -> None:
        self._arena = arena
        try:
            arena.prepare(arena.reserved_bytes)
            arena.map()
            copies = {}
            for (digest, rows), (start, _) in zip(self._rows.items(), self._places(), strict=True):
                place = arena.bytes(start, start + rows.nbytes)
                self._device.copy(place, bytes_of(rows))
                copies[digest] = place.view(rows.dtype).reshape(rows.shape)
        except BaseException as error:
            num_images = len(self._rows)
            self.close()
            if not isinstance(error, DeviceOutOfMemory):
                raise
            raise InsufficientMemory(
                f"keeping {num_images} encoded images takes {gib(error.wanted_bytes)} of host memory, "
                f"{gib(error.free_bytes)} are free; raise the container's memory limit or set keepEncoderCache to false"
            ) from error
        self._rows = copies

    def _places(self) -> Iterator[tuple[int, int]]:
        """Yield where each image's copy begins in the arena, and how much it takes there."""
        start = 0
        for rows in self._rows.values():
            size = round_up(rows.nbytes, ALIGNMENT_BYTES)
            yield start, size
            start += size
