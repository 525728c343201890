"""One image through transformers' own vision tower and projector: alone, so that its rows depend on nothing else."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load

from dormouse_worker.common.errors import InvalidArgument
from dormouse_worker.engine.batch import EncodeImage
from dormouse_worker.model.native_way import NativeWay
from dormouse_worker.model.promised_files import read_promised
from dormouse_worker.model.vision.families import VisionFamily
from dormouse_worker.model.vision.features import Tensors
from dormouse_worker.model.vision.small_steps import SmallSteps
from dormouse_worker.model.vision.widened import Widened
from dormouse_worker.native.library import Kernels


@dataclass(frozen=True, slots=True)
class ImageTower:
    """The part of a loaded module that makes rows of images."""

    module: Any
    family: VisionFamily
    folder: Path
    hidden_size: int  # H
    num_deep: int  # layers of the language model behind which it adds rows of its own
    dtype: torch.dtype
    device: torch.device
    needed: frozenset[str]  # names of the tensors that an image has
    is_widened: bool = False  # computed in float32, whatever `dtype` its weights and rows have
    kernels: Kernels | None = None  # where they are faster than torch

    @property
    def row_size(self) -> int:
        """Return the numbers of a row: what stands for an embedded token, and what is added behind layers."""
        return self.hidden_size * (1 + self.num_deep)

    def encode(self, image: EncodeImage) -> torch.Tensor:
        """Return the image's rows, [num_rows, row_size]. Raises InvalidArgument for a file that is none of its kind."""
        tensors = self._read(image)
        rows = self.compute(tensors)
        if not self._is_of_grid(tensors, image):
            raise InvalidArgument(f"its file is of another grid than {image.grid}")
        if len(rows) != image.num_rows:
            raise InvalidArgument(f"the encoder makes {len(rows)} rows of it, and the prompt has {image.num_rows}")
        if not torch.isfinite(rows).all():
            raise InvalidArgument("the encoder's numbers for it are not finite")
        return rows

    @torch.inference_mode()
    def compute(self, tensors: Tensors) -> torch.Tensor:
        """Return the rows [n, row_size] of what a processor made of one image."""
        moved = {name: self._moved(tensor) for name, tensor in tensors.items()}
        with self._ways():
            layers = self.family.features(self.module.model, moved)
        return torch.cat([self._joined(layer) for layer in layers], dim=1).to(self.dtype)

    def _ways(self) -> ExitStack:
        """Return, to be left again, how operations are computed: the way that is entered last is asked first."""
        ways = ExitStack()
        if self.device.type == "cpu":
            ways.enter_context(SmallSteps())
        if self.is_widened:
            ways.enter_context(Widened())
        if self.kernels is not None:
            ways.enter_context(NativeWay(self.kernels, self.kernels.num_threads))
        return ways

    def largest(self) -> Tensors:
        """Return what a processor makes of the largest image."""
        return self.family.largest(self.module.config)

    def _joined(self, parts: Iterable[torch.Tensor]) -> torch.Tensor:
        """Return [n, H] of the parts of an image, each of them [..., H]."""
        return torch.cat([part.reshape(-1, self.hidden_size) for part in parts])

    def _is_of_grid(self, tensors: Tensors, image: EncodeImage) -> bool:
        """Return whether the positions that the prompt has are those of the rows."""
        return not self.family.has_grids or tuple(tensors["image_grid_thw"].flatten().tolist()) == image.grid

    def _moved(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(self.device, self.dtype if tensor.is_floating_point() else None)

    def _read(self, image: EncodeImage) -> Tensors:
        try:
            tensors: Tensors = load(read_promised(self.folder / image.tensors, image.num_bytes))
        except (OSError, SafetensorError) as error:
            raise InvalidArgument(f"its file cannot be read: {error}") from error
        if tensors.keys() != self.needed:
            named = ", ".join(sorted(self.needed))
            raise InvalidArgument(f"its file has {', '.join(sorted(tensors))}; needed are {named}")
        return tensors
