"""A libcuda whose cuInit gives a chosen answer: the smallest library that the loader takes, made without a compiler.

Only cuInit is in it. What asks for more finds nothing, as with a driver that is not there.
"""

from __future__ import annotations

import struct

_SONAME = b"libcuda.so.1"
_FUNCTION = b"cuInit"
_PAGE = 0x1000
# Values of the ELF format (elf.h).
_LOAD, _DYNAMIC, _STACK = 1, 2, 0x6474E551
_READ, _WRITE, _EXECUTE = 4, 2, 1
_DT_END, _DT_HASH, _DT_STRTAB, _DT_SYMTAB, _DT_STRSZ, _DT_SYMENT, _DT_SONAME = 0, 4, 5, 6, 10, 11, 14
_HEADER_BYTES, _SEGMENT_BYTES, _SYMBOL_BYTES = 64, 56, 24
_GLOBAL_FUNCTION = 0x12


def libcuda(answer: int) -> bytes:
    """The library, for x86-64; `answer` is the CUresult that cuInit returns."""
    # mov eax, answer; ret
    code = b"\xb8" + struct.pack("<i", answer) + b"\xc3"
    strings = b"\0" + _FUNCTION + b"\0" + _SONAME + b"\0"
    # One bucket, two symbols: symbol 0 is none, symbol 1 is ours and the end of the chain.
    table = struct.pack("<5I", 1, 2, 1, 0, 0)
    segments = 4
    hash_at = _HEADER_BYTES + segments * _SEGMENT_BYTES
    symbols_at = hash_at + len(table) + (-len(table) % 8)
    strings_at = symbols_at + 2 * _SYMBOL_BYTES
    code_at = strings_at + len(strings) + (-len(strings) % 16)
    end = code_at + len(code)
    symbols = bytes(_SYMBOL_BYTES) + struct.pack("<IBBHQQ", 1, _GLOBAL_FUNCTION, 0, 1, code_at, len(code))
    entries = (
        (_DT_SONAME, 1 + len(_FUNCTION) + 1),
        (_DT_HASH, hash_at),
        (_DT_STRTAB, strings_at),
        (_DT_SYMTAB, symbols_at),
        (_DT_STRSZ, len(strings)),
        (_DT_SYMENT, _SYMBOL_BYTES),
        (_DT_END, 0),
    )
    dynamic = b"".join(struct.pack("<QQ", *entry) for entry in entries)
    # The loader writes addresses into the dynamic section, so that has a page of its own.
    head = b"\x7fELF" + bytes((2, 1, 1)) + bytes(9) + struct.pack("<HHIQQQI", 3, 62, 1, 0, _HEADER_BYTES, 0, 0)
    head += struct.pack("<6H", _HEADER_BYTES, _SEGMENT_BYTES, segments, 0, 0, 0)
    for kind, rights, place, size in (
        (_LOAD, _READ | _EXECUTE, 0, end),
        (_LOAD, _READ | _WRITE, _PAGE, len(dynamic)),
        (_DYNAMIC, _READ | _WRITE, _PAGE, len(dynamic)),
        # Without it the loader would want an executable stack, which newer ones refuse.
        (_STACK, _READ | _WRITE, 0, 0),
    ):
        align = _PAGE if kind == _LOAD else 8
        head += struct.pack("<IIQQQQQQ", kind, rights, place, place, place, size, size, align)
    body = head + table
    body = body.ljust(symbols_at, b"\0") + symbols + strings
    body = body.ljust(code_at, b"\0") + code
    return body.ljust(_PAGE, b"\0") + dynamic
