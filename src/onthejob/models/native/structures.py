"""What is handed to the compiled code: the structures of `forward.c` and `training.c`, field by field."""

from __future__ import annotations

import ctypes


class Lora(ctypes.Structure):
    """Factors of an adapter for projections that read the same input. See `forward.c`."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("a", "b", "from_")),
        *((name, ctypes.c_int64) for name in ("rank", "each")),
    )


class Layer(ctypes.Structure):
    """Packed weights of a layer."""

    _fields_ = tuple((name, ctypes.c_void_p) for name in ("qkv", "o", "gate_up", "down", "norm_attention", "norm_mlp"))


class Model(ctypes.Structure):
    """Sizes and packed weights of a model."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("layers", "hidden", "heads", "kv_heads", "dim", "inner", "vocab", "width")),
        ("eps", ctypes.c_float),
        ("layer", ctypes.POINTER(Layer)),
        *((name, ctypes.c_void_p) for name in ("embedding", "norm", "head", "cos", "sin")),
    )


class Cache(ctypes.Structure):
    """Packed keys and values of one prompt or row."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("keys", "values")),
        *((name, ctypes.c_int64) for name in ("layer_stride", "head_stride")),
    )


class Group(ctypes.Structure):
    """Rows that attend to the same tokens."""

    _fields_ = (
        ("shared", ctypes.c_int64 * 2),
        ("shared_tokens", ctypes.c_int64 * 2),
        ("first", ctypes.c_int64),
        ("count", ctypes.c_int64),
    )


class Batch(ctypes.Structure):
    """What one pass computes, and room for it."""

    _fields_ = (
        ("rows", ctypes.c_int64),
        ("groups", ctypes.c_int64),
        ("group", ctypes.POINTER(Group)),
        ("order", ctypes.c_void_p),
        ("cache", ctypes.POINTER(Cache)),
        *((name, ctypes.c_void_p) for name in ("token", "position", "own", "place")),
        ("outputs", ctypes.c_int64),
        ("output", ctypes.c_void_p),
        ("lora", ctypes.POINTER(Lora)),
        *((name, ctypes.c_void_p) for name in ("logits", "x", "h", "qkv", "attended", "inner", "wide", "low", "thread")),
        ("thread_bytes", ctypes.c_int64),
    )


class Draws(ctypes.Structure):
    """Draws of tokens from logits."""

    _fields_ = (
        ("logits", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("rows", "vocab", "width")),
        ("first", ctypes.c_void_p),
        ("uniform", ctypes.c_void_p),
        ("temperature", ctypes.c_double),
        *((name, ctypes.c_void_p) for name in ("mass", "token", "logprob")),
        ("wrong", ctypes.c_int64),
    )


class Threads(ctypes.Structure):
    """Functions of an OpenMP runtime, and how many threads it is asked for."""

    _fields_ = (
        ("parallel", ctypes.c_void_p),
        ("thread", ctypes.c_void_p),
        ("threads", ctypes.c_void_p),
        ("count", ctypes.c_int64),
    )


class Linear(ctypes.Structure):
    """A frozen projection as torch keeps it, its adapter's factors and where their gradients go. See `training.c`."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("w", "a", "b", "of_a", "of_b")),
        *((name, ctypes.c_int64) for name in ("inputs", "outputs", "rank", "low")),
        ("scale", ctypes.c_float),
    )


class Decoder(ctypes.Structure):
    """A layer that is trained."""

    _fields_ = (("of", Linear * 7), ("norm_attention", ctypes.c_void_p), ("norm_mlp", ctypes.c_void_p))


class Trained(ctypes.Structure):
    """Sizes and weights of a model whose adapters are trained."""

    _fields_ = (
        *(
            (name, ctypes.c_int64)
            for name in ("layers", "hidden", "heads", "kv_heads", "dim", "inner", "vocab", "low_width", "first")
        ),
        ("eps", ctypes.c_float),
        ("layer", ctypes.POINTER(Decoder)),
        *((name, ctypes.c_void_p) for name in ("embedding", "norm", "head", "cos", "sin")),
    )


class Tree(ctypes.Structure):
    """One tree of tokens, what is wanted of it, and room for what a pass computes."""

    _fields_ = (
        ("tokens", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("id", "depth")),
        *((name, ctypes.c_int64) for name in ("blocks", "most_keys", "most_tokens")),
        *((name, ctypes.c_void_p) for name in ("start", "from_", "key", "end")),
        *((name, ctypes.c_int64) for name in ("heads", "at_once")),
        *(
            (name, ctypes.c_void_p)
            for name in ("head", "pair_from", "pair_token", "sharpness", "logprob", "entropy", "log_total")
        ),
        ("keep", ctypes.c_int64),
        ("x", ctypes.c_void_p),
        ("x_stride", ctypes.c_int64),
        *(
            (name, ctypes.c_void_p)
            for name in (
                *("middle", "qkv", "attended", "log_sum", "gate_up", "low", "logits"),
                *("h", "inner", "scored", "thread"),
            )
        ),
        ("thread_bytes", ctypes.c_int64),
    )


class Gradients(ctypes.Structure):
    """Gradients of a tree's results, and room for those of what led to them."""

    _fields_ = tuple(
        (name, ctypes.c_void_p)
        for name in (
            *("of_logprob", "of_entropy", "of_sharpness", "of_x", "of_h", "rounded"),
            *("of_gate_up", "of_qkv", "of_attended", "of_low", "of_kv", "of_scored"),
        )
    )


SAMPLING = (Model, Layer, Lora, Cache, Group, Batch, Threads, Draws)
TRAINING = (Linear, Decoder, Trained, Tree, Gradients)
"""In the order in which the code states their sizes."""
