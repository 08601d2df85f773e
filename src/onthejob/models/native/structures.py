"""What is handed to the compiled code: the structures of `forward.c` and `training.h`, field by field."""

from __future__ import annotations

import ctypes
from typing import Any


def _fields(kind: type[Any], names: str) -> list[tuple[str, type[Any]]]:
    return [(name, kind) for name in names.split()]


_POINTER, _NUMBER = ctypes.c_void_p, ctypes.c_int64


class Lora(ctypes.Structure):
    """Factors of an adapter for projections that read the same input."""

    _fields_ = (*_fields(_POINTER, "a b from_"), *_fields(_NUMBER, "rank each"))


class LayerStruct(ctypes.Structure):
    """Packed weights of a layer."""

    _fields_ = _fields(_POINTER, "qkv o gate_up down norm_attention norm_mlp")


class ModelStruct(ctypes.Structure):
    """Sizes and packed weights of a model."""

    _fields_ = (
        *_fields(_NUMBER, "layers hidden heads kv_heads dim inner vocab width"),
        ("eps", ctypes.c_float),
        ("layer", ctypes.POINTER(LayerStruct)),
        *_fields(_POINTER, "embedding norm head cos sin"),
    )


class Cache(ctypes.Structure):
    """Packed keys and values of one prompt or row."""

    _fields_ = (*_fields(_POINTER, "keys values"), *_fields(_NUMBER, "layer_stride head_stride"))


class GroupStruct(ctypes.Structure):
    """Rows that attend to the same tokens."""

    _fields_ = (("shared", _NUMBER * 2), ("shared_tokens", _NUMBER * 2), *_fields(_NUMBER, "first count"))


class BatchStruct(ctypes.Structure):
    """What one pass computes, and room for it."""

    _fields_ = (
        *_fields(_NUMBER, "rows groups"),
        ("group", ctypes.POINTER(GroupStruct)),
        ("order", _POINTER),
        ("cache", ctypes.POINTER(Cache)),
        *_fields(_POINTER, "token position own place"),
        ("outputs", _NUMBER),
        ("output", _POINTER),
        ("lora", ctypes.POINTER(Lora)),
        *_fields(_POINTER, "logits x h qkv attended inner wide low thread"),
        ("thread_bytes", _NUMBER),
    )


class Draws(ctypes.Structure):
    """Draws of tokens from logits."""

    _fields_ = (
        ("logits", _POINTER),
        *_fields(_NUMBER, "rows vocab width"),
        *_fields(_POINTER, "first uniform"),
        ("temperature", ctypes.c_double),
        *_fields(_POINTER, "mass token logprob"),
        ("wrong", _NUMBER),
    )


class Threads(ctypes.Structure):
    """Functions of an OpenMP runtime, and how many threads it is asked for."""

    _fields_ = (*_fields(_POINTER, "parallel thread threads"), ("count", _NUMBER))


class Linear(ctypes.Structure):
    """A frozen projection as torch keeps it, its adapter's factors and where their gradients go."""

    _fields_ = (
        *_fields(_POINTER, "w a b of_a of_b"),
        *_fields(_NUMBER, "inputs outputs rank low"),
        ("scale", ctypes.c_float),
    )


class Decoder(ctypes.Structure):
    """A layer that is trained."""

    _fields_ = (("of", Linear * 7), *_fields(_POINTER, "norm_attention norm_mlp"))


class Trained(ctypes.Structure):
    """Sizes and weights of a model whose adapters are trained."""

    _fields_ = (
        *_fields(_NUMBER, "layers hidden heads kv_heads dim inner vocab low_width first"),
        ("eps", ctypes.c_float),
        ("layer", ctypes.POINTER(Decoder)),
        *_fields(_POINTER, "embedding norm head cos sin"),
    )


class Tree(ctypes.Structure):
    """One tree of tokens, what is wanted of it, and room for what a pass computes."""

    _fields_ = (
        ("tokens", _NUMBER),
        *_fields(_POINTER, "id depth"),
        *_fields(_NUMBER, "blocks most_keys most_tokens"),
        *_fields(_POINTER, "start from_ key end"),
        *_fields(_NUMBER, "heads at_once"),
        *_fields(_POINTER, "head pair_from pair_token sharpness logprob entropy log_total"),
        ("keep", _NUMBER),
        ("x", _POINTER),
        ("x_stride", _NUMBER),
        *_fields(_POINTER, "middle qkv attended log_sum gate_up low logits h inner scored thread"),
        ("thread_bytes", _NUMBER),
    )


class Gradients(ctypes.Structure):
    """Gradients of a tree's results, and room for those of what led to them."""

    _fields_ = (
        *_fields(_POINTER, "of_logprob of_entropy of_sharpness of_x of_h rounded"),
        *_fields(_POINTER, "of_gate_up of_qkv of_attended of_low of_kv of_scored"),
    )


SAMPLING = (ModelStruct, LayerStruct, Lora, Cache, GroupStruct, BatchStruct, Threads, Draws)
TRAINING = (Linear, Decoder, Trained, Tree, Gradients)
"""In the order in which the code states their sizes."""
