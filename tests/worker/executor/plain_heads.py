"""Heads of each kind in torch, over whole sequences: what those beside a model are compared with."""

from __future__ import annotations

import json

import torch
from safetensors.torch import load_file
from torch import nn
from transformers import AutoModelForCausalLM
from transformers.modeling_layers import MtpLayer
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRMSNorm, LlamaRotaryEmbedding

from tools import train_head


class Depths:
    """What comes of so many layers of a model in its last pass, side by side."""

    def __init__(self, model, depths):
        self._depths, self._kept = depths, {}
        for depth, part in enumerate([*model.model.layers, model.model.norm]):
            part.register_forward_pre_hook(lambda _, given, depth=depth: self._kept.update({depth: given[0]}))

    @property
    def states(self):
        return torch.cat([self._kept[depth] for depth in self._depths], dim=-1)


class ThirdHead(nn.Module):
    """An EAGLE-3 head, with the names that such heads are published with."""

    def __init__(self, config, tokens, depths):
        """`tokens` are those of the model that it can say, in order."""
        super().__init__()
        size, inputs = config.hidden_size, 2 * config.hidden_size
        self.fc = nn.Linear(len(depths) * size, size, bias=False)
        self.midlayer = LlamaDecoderLayer(config, 0)
        self.midlayer.hidden_norm = LlamaRMSNorm(size, config.rms_norm_eps)
        for name in ("q_proj", "k_proj", "v_proj"):
            outputs = getattr(self.midlayer.self_attn, name).out_features
            setattr(self.midlayer.self_attn, name, nn.Linear(inputs, outputs, bias=False))
        self.norm, self.lm_head = LlamaRMSNorm(size, config.rms_norm_eps), nn.Linear(size, len(tokens), bias=False)
        self.register_buffer("d2t", torch.tensor(tokens) - torch.arange(len(tokens)))
        self.register_buffer("t2d", torch.zeros(config.vocab_size, dtype=torch.bool).index_fill_(0, self.tokens, True))
        self.rotary = LlamaRotaryEmbedding(config)  # its buffers are computed, and not saved
        self.depths = depths

    @property
    def tokens(self):
        """Return the model's token of each of its own."""
        return self.d2t + torch.arange(len(self.d2t))

    def guess(self, vectors, rows):
        """Return what its layer makes of tokens' vectors and the rows before them, [B, T, H]."""
        layer, places = self.midlayer, torch.arange(rows.shape[1])[None]
        both = torch.cat([layer.input_layernorm(vectors), layer.hidden_norm(rows)], dim=-1)
        attended, _ = layer.self_attn(
            hidden_states=both, position_embeddings=self.rotary(rows, places), attention_mask=None
        )
        rows = rows + attended
        return rows + layer.mlp(layer.post_attention_layernorm(rows))

    def logits(self, rows):
        """Return those of its own vocabulary."""
        return self.lm_head(self.norm(rows))

    def learn(self, model, row, steps):
        """Learn to say a row of tokens, all of which it can say."""
        kept, tokens = Depths(model, self.depths), torch.tensor([row])
        model.model(input_ids=tokens[:, :-2])
        states, vectors = kept.states, model.get_input_embeddings()(tokens[:, 1:-1])
        wanted = torch.searchsorted(self.tokens, tokens[0, 2:])
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2, weight_decay=0.0)
        for _ in range(steps):
            logits = self.logits(self.guess(vectors, self.fc(states)))
            torch.nn.functional.cross_entropy(logits[0], wanted).backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)


class Plain:
    """A model and its head, over whole sequences."""

    def __init__(self, directory):
        self._model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()

    @torch.no_grad()
    def regret(self, tokens, drafts):
        """Return by how much the head's best tokens were likelier than the drafts at most, in logits."""
        rows, known, most = self.read(tokens[:-1]), list(tokens), 0.0
        for draft in drafts:
            vectors = self._model.get_input_embeddings()(torch.tensor([known[1:]]))
            last = self.guess(vectors, rows)[:, -1:]
            logits = self.logits(last)
            most = max(most, float(logits.max() - logits[draft]))
            known.append(draft)
            rows = torch.cat([rows, last], dim=1)
        return most


class PlainFirst(Plain):
    """With a head of EAGLE's first version."""

    def __init__(self, directory, head):
        super().__init__(directory)
        self._head = train_head.build_head(self._model.config)
        self._head.load_state_dict(load_file(head / "model.safetensors"), strict=False)

    def read(self, tokens):
        """Return the model's states."""
        return self._model.model(input_ids=torch.tensor([tokens])).last_hidden_state

    def guess(self, vectors, rows):
        """Return guesses of the next states."""
        return train_head.guess(self._head, vectors, rows)

    def logits(self, row):
        """Return those of the model's vocabulary."""
        return self._model.lm_head(row)[0, 0]


class PlainThird(Plain):
    """With an EAGLE-3 head."""

    def __init__(self, directory, head):
        super().__init__(directory)
        weights = load_file(head / "model.safetensors")
        tokens = (weights["d2t"] + torch.arange(len(weights["d2t"]))).tolist()
        depths = json.loads((head / "config.json").read_text("utf-8"))["eagle_aux_hidden_state_layer_ids"]
        self._head = ThirdHead(self._model.config, tokens, depths)
        self._head.load_state_dict(weights)
        self._kept = Depths(self._model, depths)

    def read(self, tokens):
        """Return what the first map makes of the model's states."""
        self._model.model(input_ids=torch.tensor([tokens]))
        return self._head.fc(self._kept.states)

    def guess(self, vectors, rows):
        """Return the next rows."""
        return self._head.guess(vectors, rows)

    def logits(self, row):
        """Return those of the model's vocabulary; of tokens that it cannot say they are the least."""
        wide = torch.full((self._model.config.vocab_size,), float("-inf"))
        wide[self._head.tokens] = self._head.logits(row)[0, 0]
        return wide


class OwnHead:
    """A model's own head for multi-token prediction, with random weights; its experts have one tensor for all."""

    def __init__(self, model):
        layers = model.model.layers
        self.layer = MtpLayer(model.config.get_mtp_config(), type(layers[-1]), type(layers[-1].input_layernorm), 0)
        self.layer.mtp_block.self_attn.config._attn_implementation = "sdpa"
        self._model = model
        for name, tensor in self.layer.state_dict().items():  # norms near 1: else attention takes all places alike
            tensor.normal_(mean=float("norm" in name), std=0.2)

    def guess(self, vectors, rows):
        """Return the next states, [B, T, H]."""
        places = torch.arange(rows.shape[1])[None]
        turned = self._model.model.rotary_emb(vectors, position_ids=places)
        return self.layer(vectors, rows, turned, attention_mask=None, position_ids=places, past_key_values=None)

    def learn(self, row, steps):
        """Learn to say a row of tokens."""
        tokens = torch.tensor([row])
        with torch.no_grad():
            states = self._model.model(input_ids=tokens[:, :-2]).last_hidden_state
            vectors = self._model.get_input_embeddings()(tokens[:, 1:-1])
        optimizer = torch.optim.AdamW(self.layer.parameters(), lr=1e-2, weight_decay=0.0)
        for _ in range(steps):
            logits = self._model.lm_head(self.guess(vectors, states))
            torch.nn.functional.cross_entropy(logits[0], tokens[0, 2:]).backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    def stored(self, begins):
        """Yield its tensors with the names that checkpoints have for them."""
        for of_module, tensor in self.layer.state_dict().items():
            name = begins + of_module.replace("mtp_block.", "").replace("post_norm.", "shared_head.norm.")
            if name.endswith("gate_up_proj"):
                for expert, both in enumerate(tensor):
                    for part, half in zip(("gate_proj", "up_proj"), both.chunk(2), strict=True):
                        yield name.replace("gate_up_proj", f"{expert}.{part}.weight"), half.contiguous()
            elif name.endswith("experts.down_proj"):
                for expert, each in enumerate(tensor):
                    yield name.replace("down_proj", f"{expert}.down_proj.weight"), each.contiguous()
            else:
                yield name, tensor.contiguous()


class PlainOwn(Plain):
    """With its own head for multi-token prediction."""

    def __init__(self, directory, head):
        super().__init__(directory)
        self._head = head

    def read(self, tokens):
        """Return the model's states."""
        return self._model.model(input_ids=torch.tensor([tokens])).last_hidden_state

    def guess(self, vectors, rows):
        """Return guesses of the next states."""
        return self._head.guess(vectors, rows)

    def logits(self, row):
        """Return those of the model's vocabulary."""
        return self._model.lm_head(row)[0, 0]
