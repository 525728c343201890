"""What torch is asked to compute itself where others could."""

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

OPERATIONS = (
    functional.scaled_dot_product_attention,
    functional.linear,
    functional.layer_norm,
    functional.gelu,
    functional.silu,
    torch._grouped_mm,
)


class Asked(TorchFunctionMode):
    """Notes which of these torch is asked to compute itself, and on how many threads it computes all else."""

    def __init__(self):
        super().__init__()
        self.named, self.of_halves, self.threads = [], [], set()

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function in OPERATIONS:
            self.named.append(function)
            self.of_halves += [function] * (args[0].dtype == torch.bfloat16)
        self.threads.add((function in OPERATIONS, torch.get_num_threads()))
        return function(*args, **(kwargs or {}))
