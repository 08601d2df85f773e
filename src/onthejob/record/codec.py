"""How values become columns: token ids, floats, texts and JSON, each coming back exactly as it went in.

A packed column is two tag bytes (element type, then `r` raw or `z` zstandard) and a little-endian body. Each element type is
the narrowest that holds every value without loss, bit for bit. Compressors are made per call: a zstandard compressor shared
by threads can crash the process.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import PurePath
from typing import Any

import numpy as np
import zstandard

from onthejob.errors import ContractError, DamagedRecord

_LEVEL = 3
_WORTH_COMPRESSING = 128  # bytes; below it a zstandard frame rarely pays for its header
_DTYPES = {b"H": np.dtype("<u2"), b"I": np.dtype("<u4"), b"f": np.dtype("<f4"), b"d": np.dtype("<f8")}
_NON_FINITE = "$float"


def pack_bytes(data: bytes, kind: bytes = b"b") -> bytes:
    """`data` behind its two tag bytes, compressed when that makes it smaller."""
    if len(data) >= _WORTH_COMPRESSING:
        compressed = zstandard.compress(data, _LEVEL)
        if len(compressed) < len(data):
            return kind + b"z" + compressed
    return kind + b"r" + data


def _unpack(blob: bytes, kinds: bytes) -> tuple[bytes, bytes]:
    """The element type and the body of a packed column."""
    kind, form = bytes(blob[:1]), bytes(blob[1:2])
    if len(blob) < 2 or kind not in kinds or form not in b"rz":
        raise DamagedRecord(
            f"a packed column is damaged: it starts with {bytes(blob[:2])!r}, expected one of {kinds!r} and 'r' or 'z'. "
            "Restore run.sqlite from a copy."
        )
    if form == b"r":
        return kind, bytes(blob[2:])
    try:
        return kind, zstandard.decompress(blob[2:])
    except zstandard.ZstdError as error:
        raise DamagedRecord(f"a packed column is damaged: {error}. Restore run.sqlite from a copy.") from error


def unpack_bytes(blob: bytes) -> bytes:
    """Inverse of `pack_bytes`."""
    return _unpack(blob, b"b")[1]


def pack_ids(ids: Sequence[int]) -> bytes:
    """Token ids in [0, 2**32) as 16-bit numbers when all fit, else as 32-bit.

    Raises:
        ContractError: an id is negative, too large or not an integer.
    """
    try:
        given = np.asarray(ids)
        with np.errstate(invalid="ignore"):  # what has no integer becomes a negative one
            values = given.astype(np.int64)
        changed = given.ndim != 1 or (given.dtype.kind not in "iu" and any(int(i) != i for i in ids))
    except (TypeError, ValueError, OverflowError) as error:
        raise ContractError(f"token ids must be integers in [0, 2**32), got {ids!r:.80}.") from error
    if values.size and (values.min() < 0 or values.max() >= 2**32 or changed):
        raise ContractError(f"token ids must be integers in [0, 2**32), got {ids!r:.80}.")
    kind = b"H" if not values.size or values.max() < 2**16 else b"I"
    return pack_bytes(values.astype(_DTYPES[kind]).tobytes(), kind)


def unpack_ids(blob: bytes) -> tuple[int, ...]:
    """Inverse of `pack_ids`."""
    kind, body = _unpack(blob, b"HI")
    return tuple(np.frombuffer(body, dtype=_DTYPES[kind]).tolist())


def pack_floats(values: Sequence[float]) -> bytes:
    """Floats as 32-bit numbers when none loses a bit (model log-probabilities do not), else as 64-bit."""
    wide = np.asarray(values, dtype="<f8")
    if wide.ndim != 1:
        raise ContractError(f"expected a flat sequence of numbers, got shape {wide.shape}.")
    with np.errstate(over="ignore", invalid="ignore"):
        narrow = wide.astype("<f4")
    same = np.array_equal(narrow.astype("<f8").view("<u8"), wide.view("<u8"))
    return pack_bytes(narrow.tobytes(), b"f") if same else pack_bytes(wide.tobytes(), b"d")


def unpack_floats(blob: bytes) -> tuple[float, ...]:
    """Inverse of `pack_floats`."""
    kind, body = _unpack(blob, b"fd")
    return tuple(np.frombuffer(body, dtype=_DTYPES[kind]).astype("<f8").tolist())


def pack_text(text: str) -> str | bytes:
    """`text` itself, or its bytes when it holds a lone surrogate, which SQLite's TEXT cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")
    return text


def unpack_text(value: str | bytes) -> str:
    """Inverse of `pack_text`."""
    return value if isinstance(value, str) else value.decode("utf-8", "surrogatepass")


def _plain(value: Any, where: str) -> Any:
    """`value` in the types of JSON; numbers that JSON does not have become `{"$float": "nan"}`."""
    if isinstance(value, Enum):
        return _plain(value.value, where)
    if isinstance(value, np.generic):
        return _plain(value.item(), where)
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else {_NON_FINITE: repr(value)}
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str) or key == _NON_FINITE:
                raise ContractError(f"{where} must be JSON: a key must be text and not {_NON_FINITE!r}, got {key!r}.")
        return {str(key): _plain(item, f"{where}.{key}") for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item, f"{where}[{index}]") for index, item in enumerate(value)]
    raise ContractError(f"{where} must be JSON, got {type(value).__name__}: {value!r:.80}. Convert it to text, numbers or lists.")


def dump_json(value: Any, where: str) -> str:
    """Canonical JSON: sorted keys, no spaces, floats with all their bits, ASCII only.

    Tuples come back as lists, enum members as their values and paths as text.

    Raises:
        ContractError: something in `value` is not JSON; names the place, e.g. `facts.worlds[2]`.
    """
    return json.dumps(_plain(value, where), sort_keys=True, separators=(",", ":"), allow_nan=False)


def _restore(pairs: list[tuple[str, Any]]) -> Any:
    return float(pairs[0][1]) if len(pairs) == 1 and pairs[0][0] == _NON_FINITE else dict(pairs)


def load_json(text: str) -> Any:
    """Inverse of `dump_json`."""
    try:
        return json.loads(text, object_pairs_hook=_restore)
    except (ValueError, TypeError, RecursionError) as error:
        raise DamagedRecord(f"a JSON column is damaged: {error}. Restore run.sqlite from a copy.") from error
