"""The tables of `docs/last-words.md`, out of the table of last words."""

from __future__ import annotations

from collections.abc import Callable
from html import escape
from itertools import groupby
from pathlib import Path

from vllm_node.last_words.table import Word, words


def page(path: Path, between: Callable[[Path, str], str], table: Callable[..., str]) -> dict[Path, str]:
    """The page as it should be; nothing where there is none. `between` and `table` are those of `vllm_node.docs`."""
    if not path.exists():
        return {}
    head = ("what the log says (regular expression)", "what has happened", "next step")
    parts = [
        f"### {group}\n\n{table(head, map(_row, entries))}"
        for group, entries in groupby(words(), key=lambda word: word.group)
    ]
    return {path: between(path, "\n".join(parts))}


def _row(word: Word) -> tuple[str, ...]:
    after = f" (after {_code(word.after.pattern)})" if word.after else ""
    return _code(word.says.pattern) + after, _plain(word.means), _plain(word.cure)


def _code(pattern: str) -> str:
    # Neither a bar nor a backquote can stand between backquotes in a cell of Markdown.
    return f"<code>{escape(pattern, quote=False).replace('|', '&#124;').replace('`', '&#96;')}</code>"


def _plain(text: str) -> str:
    return text.replace("|", "\\|")
