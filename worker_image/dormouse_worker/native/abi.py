"""The structures that the kernels read, as `src/abi.h` declares them. Change both, and VERSION."""

from __future__ import annotations

import ctypes
from ctypes import CFUNCTYPE, POINTER, c_double, c_float, c_int32, c_int64, c_uint64, c_void_p

VERSION = 19
FLOAT32, BFLOAT16 = 0, 1
AS_IT_COMES, ROWS_INT8, ROWS_FP8 = range(3)
PLAIN, INT8, INT4, W4_1, W4_4, W4_LOW, MXFP4, W8_4, W8_8, W8_LOW = range(10)
GELU, SILU, GELU_TANH = range(3)
LATE = 1
MAX_HEAD_SIZE = 256  # numbers of a head: MAX_HEAD in `src/unit.h`
UNORDERED = -3  # what a forward pass answers to rows that do not ascend
SumUp = CFUNCTYPE(c_int64, c_void_p, c_int64)  # float32 numbers and how many -> whether all ranks came


class Group(ctypes.Structure):
    """One layer group's part of a packed batch."""

    _fields_ = (("block_tables", c_void_p), ("num_columns", c_int64), ("slots", c_void_p))


class Batch(ctypes.Structure):
    """A packed batch; attention alone leaves out tokens, rows, hidden states, logits and workspace."""

    _fields_ = (
        ("num_seqs", c_int64),
        ("num_tokens", c_int64),
        ("num_rows", c_int64),
        ("block_size", c_int64),
        ("query_starts", c_void_p),
        ("positions", c_void_p),
        ("token_ids", c_void_p),
        ("rows", c_void_p),
        ("groups", POINTER(Group)),
        ("hidden", c_void_p),
        ("logits", c_void_p),
        ("workspace", c_void_p),
        ("lora_slots", c_void_p),
        ("last_seen", c_void_p),
        ("rope", c_void_p),
        ("deep", c_void_p),
        ("num_deep", c_int64),
        ("states", c_void_p),
        ("states_of_all", c_int64),
        ("depths", c_void_p),
        ("num_depths", c_int64),
        ("beside", c_void_p),
    )


class Attention(ctypes.Structure):
    """How one layer attends, and its pools."""

    _fields_ = (
        ("dtype", c_int64),
        ("num_heads", c_int64),
        ("num_kv_heads", c_int64),
        ("key_size", c_int64),
        ("value_size", c_int64),
        ("window", c_int64),
        ("scale", c_float),
        ("soft_cap", c_float),
        ("sinks", c_void_p),
        ("keys", c_void_p),
        ("values", c_void_p),
        ("stored", c_int64),
    )


class Heads(ctypes.Structure):
    """Rows [T, heads, size] of which the last dimension is dense."""

    _fields_ = (("data", c_void_p), ("token_stride", c_int64), ("head_stride", c_int64))


class Linear(ctypes.Structure):
    """A linear map; no bias = null, no scales = plain weights."""

    _fields_ = (("weight", c_void_p), ("bias", c_void_p), ("format", c_int64), ("scales", c_void_p))


class Lora(ctypes.Structure):
    """What adapters have for one map; nothing = null."""

    _fields_ = (("a", c_void_p), ("b", c_void_p), ("starts", c_int64 * 4), ("num_parts", c_int64))


class Norm(ctypes.Structure):
    """A root-mean-square norm; none = null."""

    _fields_ = (("weight", c_void_p), ("eps", c_double))


class LayerNorm(ctypes.Structure):
    """A norm by mean and variance, or by the root mean square; of float32 [columns] each, no bias = null."""

    _fields_ = (("weight", c_void_p), ("bias", c_void_p), ("eps", c_double), ("keeps_mean", c_int64))


class Layer(ctypes.Structure):
    """A decoder's layer."""

    _fields_ = (
        ("attention", Attention),
        ("group", c_int64),
        ("input_norm", Norm),
        ("query_norm", Norm),
        ("key_norm", Norm),
        ("mlp_norm", Norm),
        ("beside_norm", Norm),
        ("qkv", Linear),
        ("output", Linear),
        ("gate_up", Linear),
        ("down", Linear),
        ("qkv_lora", Lora),
        ("output_lora", Lora),
        ("gate_up_lora", Lora),
        ("down_lora", Lora),
    )


class Model(ctypes.Structure):
    """A decoder, or one rank's part of it."""

    _fields_ = (
        ("dtype", c_int64),
        ("num_layers", c_int64),
        ("hidden_size", c_int64),
        ("intermediate_size", c_int64),
        ("vocab_size", c_int64),
        ("first_token", c_int64),
        ("num_embedded", c_int64),
        ("num_logits", c_int64),
        ("rank", c_int64),
        ("num_ranks", c_int64),
        ("sum_up", SumUp),
        ("embedding", Linear),
        ("inv_freq", c_void_p),
        ("attention_factor", c_double),
        ("axes", c_void_p),
        ("norm", Norm),
        ("head", Linear),
        ("layers", POINTER(Layer)),
        ("lora_slot_bytes", c_int64),
        ("lora_rank", c_int64),
        ("lora_ranks", c_void_p),
    )


class Draw(ctypes.Structure):
    """How one row chooses its token."""

    _fields_ = (
        ("factor", c_float),
        ("min_p", c_float),
        ("repetition", c_float),
        ("top_p", c_double),
        ("presence", c_double),
        ("frequency", c_double),
        ("top_k", c_int64),
        ("seed", c_uint64),
        ("choice_index", c_int64),
        ("tokens", c_void_p),
        ("num_prompt", c_int64),
    )


class Sample(ctypes.Structure):
    """Rows of scores that choose tokens."""

    _fields_ = (
        ("num_rows", c_int64),
        ("vocab_size", c_int64),
        ("num_desks", c_int64),
        ("scores", c_void_p),
        ("draws", POINTER(Draw)),
        ("positions", c_void_p),
        ("tokens", c_void_p),
        ("workspace", c_void_p),
        ("allowed", POINTER(c_void_p)),
        ("num_bytes", POINTER(c_int64)),
        ("are_whole", c_void_p),
    )


class Stage(ctypes.Structure):
    """One rank's place among those of its stage, which share memory."""

    _fields_ = (
        ("memory", c_void_p),
        ("rank", c_int64),
        ("num_ranks", c_int64),
        ("timeout_ms", c_int64),
        ("others", POINTER(c_int32)),
    )
