"""The header of a safetensors file: whether the file is as long as it says, and whether its tensors fill it exactly.

8 bytes with the header's length, the header as JSON, then the tensors, which follow each other without a gap. vLLM's
own reader refuses anything else, but only after it has begun to load.
"""

from __future__ import annotations

import json
import struct
from typing import Any

_LARGEST_HEADER = 100_000_000
# Bits of an element. A type that is not listed is newer than this table; its size is not judged.
_BITS = {
    **dict.fromkeys(("F4",), 4),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("I16", "U16", "F16", "BF16"), 16),
    **dict.fromkeys(("I32", "U32", "F32"), 32),
    **dict.fromkeys(("I64", "U64", "F64", "C64"), 64),
}


def inspect(place: str, size: int) -> tuple[dict[str, Any], str | None]:
    """Tensors of a file of `size` bytes as its header has them, and what is wrong with it; None when nothing is.

    Raises OSError when it cannot be read.
    """
    with open(place, "rb") as stream:
        first = stream.read(8)
        length = struct.unpack("<Q", first)[0] if len(first) == 8 else 0
        if not 2 <= length <= _LARGEST_HEADER or 8 + length > size:
            return {}, "has no safetensors header (truncated or another format)"
        text = stream.read(length)
    try:
        header = json.loads(text.decode("utf-8"))
        tensors = {str(name): entry for name, entry in header.items() if name != "__metadata__"}
        spans = sorted((*_span(entry), name) for name, entry in tensors.items())
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError):
        return {}, "has a header that cannot be read"
    expected = 8 + length + max((end for _, end, _ in spans), default=0)
    if size != expected:
        word = "truncated" if size < expected else "longer than its header says"
        return tensors, f"is {word}: {size} bytes instead of {expected}"
    return tensors, _gap(spans) or _misfit(tensors)


def _span(entry: dict[str, Any]) -> tuple[int, int]:
    begin, end = entry["data_offsets"]
    if not 0 <= begin <= end:
        raise ValueError(begin, end)
    return int(begin), int(end)


def _gap(spans: list[tuple[int, int, str]]) -> str | None:
    """Tensors that overlap, or leave bytes that belong to none."""
    at = 0
    for begin, end, name in spans:
        if begin != at:
            word = "overlaps another one" if begin < at else f"leaves a gap of {begin - at} bytes before it"
            return f"has offsets that do not fit: tensor {name} {word}"
        at = end
    return None


def _misfit(tensors: dict[str, Any]) -> str | None:
    """A tensor whose bytes are more or fewer than its type and shape need."""
    for name, entry in sorted(tensors.items()):
        kind, shape = entry.get("dtype"), entry.get("shape")
        if not isinstance(kind, str) or not isinstance(shape, list) or any(type(each) is not int for each in shape):
            return f"has a header that gives tensor {name} no type or shape"
        bits = _BITS.get(kind)
        for length in shape:
            bits = None if bits is None else bits * length
        begin, end = _span(entry)
        if bits is not None and (end - begin) * 8 != bits:
            return f"has a tensor {name} of {end - begin} bytes, and {kind} {shape} takes {bits / 8:g}"
    return None
