"""Server-sent events out of pieces of a body that are cut anywhere."""

from __future__ import annotations

_BOM = b"\xef\xbb\xbf"


class Events:
    """Collects pieces of a body and gives out the data of each event that they complete.

    Bytes are decoded by whoever reads an event, never here: a piece may end inside a character.
    """

    __slots__ = ("_after_cr", "_data", "_fresh", "_rest")

    def __init__(self) -> None:
        """Nothing has come yet."""
        self._rest = b""
        self._data: list[bytes] = []
        self._after_cr = False
        self._fresh = True

    @property
    def idle(self) -> bool:
        """Whether no event has begun that is not complete."""
        return not (self._rest or self._data or self._after_cr or self._fresh)

    def feed(self, piece: bytes) -> list[bytes]:
        """Data of the events that end in this piece, in order. An event is complete with its empty line."""
        if self._after_cr and piece:
            # The line ended with the CR already; this may be the other half of a CR LF.
            piece = piece.removeprefix(b"\n")
            self._after_cr = False
        if self._fresh and piece:
            piece = self._rest + piece
            self._rest = b""
            if len(piece) < len(_BOM) and _BOM.startswith(piece):
                self._rest = piece
                return []
            piece = piece.removeprefix(_BOM)
            self._fresh = False
        if b"\r" in piece:
            self._after_cr = piece.endswith(b"\r")
            piece = piece.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        lines = (self._rest + piece).split(b"\n")
        self._rest = lines.pop()
        found = []
        for line in lines:
            if line.startswith(b"data:"):
                self._data.append(line[6:] if line[5:6] == b" " else line[5:])
            elif line == b"data":
                self._data.append(b"")
            elif not line and self._data:
                found.append(self._data[0] if len(self._data) == 1 else b"\n".join(self._data))
                self._data.clear()
        return found
