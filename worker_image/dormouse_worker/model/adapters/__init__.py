"""LoRA adapters on tensors: where their matrices lie, how they get there, and what they add to a pass in torch."""
