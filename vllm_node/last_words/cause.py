"""Which line of a unit's log tells why it died."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from vllm_node.last_words.table import Word, words

_RANKS = ("cause", "general", "consequence")

# What a program says while nothing is wrong, or not wrong enough to stop: no such line is a last word.
_CALM = re.compile(
    r"(?:\([^()]*pid=\d+\) )*(?:DEBUG|INFO|WARNING) \d\d-\d\d "  # vLLM
    r"|.*\blevel=[\"']?(?:debug|info|warn)"  # what is written in Go
    r"|.*\[(?:debug|info|notice|warn)\] \d+#"  # nginx
    r"|.*\bNCCL INFO\b",
    re.IGNORECASE,
)
# systemd's own words at the begin of each start.
_START = re.compile(r"\S+\.service: Scheduled restart job|Starting \S.*\.\.\.$")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True)
class Cause:
    """Why a unit died: an entry of the table, the line that showed it, and the detail of that line, if any."""

    word: Word
    line: str
    detail: str = ""

    @property
    def text(self) -> str:
        """For people: what has happened and what to do next."""
        return self.word.means + (f" ({self.detail})" if self.detail else "") + "; " + self.word.cure


def likely_cause(log: str) -> str | None:
    """What the end of a unit's log usually means, and what to do; None when it says nothing that is known."""
    found = explain(log)
    return found.text if found else None


def explain(log: str) -> Cause | None:
    """The cause in the latest start that shows one.

    `log`: the end of a unit's journal, which may hold several starts, with or without the lines of systemd.
    """
    return next((found for found in causes(log) if found), None)


def causes(log: str) -> Iterator[Cause | None]:
    """The cause of each start in the log, the latest one first; None for a start that shows none."""
    return (_cause(lines) for lines in reversed(_starts(log)))


def _starts(log: str) -> list[list[str]]:
    starts: list[list[str]] = [[]]
    # A bar that is redrawn in place stands in one line of the journal.
    for line in re.split(r"[\r\n]+", _COLOUR.sub("", log)):
        if _START.match(line) and starts[-1]:
            starts.append([])
        elif line.strip():
            starts[-1].append(line.strip())
    return [lines for lines in starts if lines]


def _cause(lines: Iterable[str]) -> Cause | None:
    """The first line of the most telling kind: what stands above has led to what stands below."""
    best: Cause | None = None
    before: set[str] = set()
    for line in lines:
        if not _CALM.match(line):
            found = _match(line, before)
            if found and (best is None or _rank(found) < _rank(best)):
                best = found
            if best and not _rank(best):
                break
        before.update(word.id for word in words() if word.after and word.after.search(line))
    return best


def _match(line: str, before: set[str]) -> Cause | None:
    for word in words():
        if word.after and word.id not in before:
            continue
        match = word.says.search(line)
        if match:
            detail = next((group for group in match.groups() if group), "")
            return Cause(word, line, detail.strip().rstrip("\"'"))
    return None


def _rank(cause: Cause) -> int:
    return _RANKS.index(cause.word.kind)
