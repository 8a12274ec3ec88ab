"""A reader for the plain block YAML that nvidia-ctk writes, for nodes whose Python has no YAML library.

It knows mappings, sequences, plain and quoted scalars and one-line flow collections. Whatever else YAML can
do (anchors, tags, block scalars, several documents) is refused with an error: a wrong reading would be worse
than none.
"""

from __future__ import annotations

import json
import re
from typing import Any

_KEY = re.compile(
    r"""^("(?:[^"\\]|\\.)*"|'(?:[^']|'')*'|[^\s"'\[\]{},&*!|>%@`#-][^#]*?|-[^\s#][^#]*?)\s*:(?:\s+|$)"""
)
_DEPTH = 40


class YamlError(ValueError):
    """The text is no YAML that this reader understands; the message names the line."""


def read(text: str) -> Any:
    """Value of one YAML document: dict, list, str, int, float, bool or None. Raises YamlError."""
    lines: list[tuple[int, str, int]] = []
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.rstrip()
        bare = line.lstrip(" ")
        if not bare or bare.startswith("#"):
            continue
        if line == "---" and not lines:
            continue
        if line in ("---", "...") or line.startswith(("%", "--- ")):
            raise YamlError(f"line {number}: only one plain document can be read")
        if bare.startswith("\t"):
            raise YamlError(f"line {number}: a tab indents the line")
        lines.append((len(line) - len(bare), bare, number))
    if not lines:
        return None
    value, end = _block(lines, 0, lines[0][0], 0)
    if end != len(lines):
        raise YamlError(f"line {lines[end][2]}: indentation does not fit")
    return value


def _block(lines: list[tuple[int, str, int]], at: int, indent: int, depth: int) -> tuple[Any, int]:
    if depth > _DEPTH:
        raise YamlError(f"line {lines[at][2]}: nested too deep")
    text = lines[at][1]
    if text == "-" or text.startswith("- "):
        return _sequence(lines, at, indent, depth)
    if _KEY.match(text):
        return _mapping(lines, at, indent, depth)
    return _scalar(text, lines[at][2]), at + 1


def _sequence(lines: list[tuple[int, str, int]], at: int, indent: int, depth: int) -> tuple[list[Any], int]:
    items: list[Any] = []
    while at < len(lines) and lines[at][0] == indent:
        _, text, number = lines[at]
        if not (text == "-" or text.startswith("- ")):
            break
        rest = text[1:].lstrip(" ")
        if rest and not rest.startswith("#"):
            # "- key: value" opens a block whose indentation is where "key" stands.
            inner = indent + len(text) - len(rest)
            lines[at] = (inner, rest, number)
            value, at = _block(lines, at, inner, depth + 1)
        else:
            value, at = _nested(lines, at + 1, indent + 1, depth)
        items.append(value)
    return items, at


def _mapping(
    lines: list[tuple[int, str, int]], at: int, indent: int, depth: int
) -> tuple[dict[str, Any], int]:
    found: dict[str, Any] = {}
    while at < len(lines) and lines[at][0] == indent:
        _, text, number = lines[at]
        match = _KEY.match(text)
        if not match:
            raise YamlError(f"line {number}: a key was expected")
        key = str(_scalar(match.group(1), number)) if match.group(1)[0] in "\"'" else match.group(1)
        if key in found:
            raise YamlError(f"line {number}: {key} is there twice")
        rest = text[match.end() :].strip()
        if rest and not rest.startswith("#"):
            found[key], at = _scalar(rest, number), at + 1
            if at < len(lines) and lines[at][0] > indent:
                raise YamlError(f"line {lines[at][2]}: a value over several lines cannot be read")
            continue
        at += 1
        if (
            at < len(lines)
            and lines[at][0] == indent
            and (lines[at][1] == "-" or lines[at][1].startswith("- "))
        ):
            # A sequence may stand at the same indentation as the key it belongs to.
            found[key], at = _sequence(lines, at, indent, depth + 1)
        else:
            found[key], at = _nested(lines, at, indent + 1, depth)
    return found, at


def _nested(lines: list[tuple[int, str, int]], at: int, least: int, depth: int) -> tuple[Any, int]:
    if at < len(lines) and lines[at][0] >= least:
        return _block(lines, at, lines[at][0], depth + 1)
    return None, at


def _scalar(text: str, number: int) -> Any:
    first = text[0]
    if first in "\"'":
        return _quoted(text, number)
    if first in "[{":
        return _flow(text, number)
    if first in "&*!|>%@`":
        raise YamlError(f"line {number}: {first} cannot be read")
    return _plain(re.split(r"\s+#", text, maxsplit=1)[0].strip())


def _quoted(text: str, number: int) -> str:
    pattern = r'"((?:[^"\\]|\\.)*)"' if text[0] == '"' else r"'((?:[^']|'')*)'"
    match = re.match(pattern + r"\s*(?:\s#.*)?$", text)
    if not match:
        raise YamlError(f"line {number}: the quotes do not close")
    if text[0] == "'":
        return match.group(1).replace("''", "'")
    try:
        return str(json.loads('"' + match.group(1) + '"'))
    except ValueError:
        raise YamlError(f"line {number}: unknown escape in a quoted text") from None


def _flow(text: str, number: int) -> Any:
    text = re.split(r"\s+#", text, maxsplit=1)[0].strip()
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        pass
    if text.startswith("[") and text.endswith("]") and not re.search(r"[\[\]{}\"']", text[1:-1]):
        return [_plain(item.strip()) for item in text[1:-1].split(",") if item.strip()]
    raise YamlError(f"line {number}: this flow collection cannot be read")


def _plain(text: str) -> Any:
    if text in ("", "~", "null", "Null", "NULL"):
        return None
    if text in ("true", "True", "TRUE"):
        return True
    if text in ("false", "False", "FALSE"):
        return False
    if re.fullmatch(r"[-+]?(0|[1-9][0-9]{0,18})", text):
        return int(text)
    if re.fullmatch(r"[-+]?[0-9]+\.[0-9]+", text):
        return float(text)
    return text
