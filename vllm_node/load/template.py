"""Recognises a read that differs from an earlier one in nothing but the text of its token.

Most reads of a stream are such: one chunk with one event of the same form. Decoding each anew would take most of the
generator's CPU. What is recognised here means exactly what decoding would find, else it is not recognised.
"""

from __future__ import annotations

import re

_MARK = re.compile(rb'"(?:text|content)":"')
# Without quotes, escapes and bytes beyond ASCII there is one way only to read a JSON string.
_PLAIN = re.compile(rb"[ !#-\[\]-~]+")
_EVENT, _END = b"data: ", b"\n\n\r\n"


class Template:
    """A chunk with one event: what stands before its text, and after it."""

    __slots__ = ("_after", "_before")

    def __init__(self, before: bytes, after: bytes) -> None:
        """`before` follows the line with the chunk's size; `after` goes to the chunk's end."""
        self._before = before
        self._after = after

    def fits(self, read: bytes) -> bool:
        """Whether a read that begins between two chunks is one chunk of this form, with some plain text."""
        if not read.endswith(self._after):
            return False
        line = read.find(b"\r\n", 0, 10)
        if line < 1 or not read.startswith(self._before, line + 2):
            return False
        text = _PLAIN.match(read, line + 2 + len(self._before))
        if text is None or text.end() != len(read) - len(self._after):
            return False
        try:
            # The size of the chunk has to be that of the rest, less the line ends around it.
            return int(read[:line], 16) == len(read) - line - 4
        except ValueError:
            return False


def template(read: bytes, text: str) -> Template | None:
    """The form of a read that is one chunk with one event whose content is `text`; None when it is not that plain.

    The caller has decoded it, and knows that nothing but the content is of interest in it.
    """
    line = read.find(b"\r\n", 0, 10)
    marks = list(_MARK.finditer(read))
    if line < 1 or len(marks) != 1 or not read.startswith(_EVENT, line + 2) or not read.endswith(_END):
        return None
    start = marks[0].end()
    plain = _PLAIN.match(read, start)
    if plain is None or plain[0] != text.encode() or read[plain.end() : plain.end() + 1] != b'"':
        return None
    found = Template(read[line + 2 : start], read[plain.end() :])
    return found if found.fits(read) else None
