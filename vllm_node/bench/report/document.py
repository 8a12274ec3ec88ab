"""Reads a run document and says exactly what is wrong with one that cannot be shown."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

SCHEMA = 1
_PATH = Path(__file__).with_name("run.schema.json")
_MOST = 10


class RunDocumentError(ValueError):
    """A run document that cannot be used; `problems` has one line for each thing that is wrong."""

    def __init__(self, where: str, problems: list[str]) -> None:
        """`where` is a file, or what else the document came from."""
        super().__init__(f"{where}: " + "; ".join(problems))
        self.problems = problems


def read(path: Path) -> Mapping[str, Any]:
    """The run document in a file.

    Raises:
        RunDocumentError: it is no JSON, of another schema, or something in it is missing or wrong.
        OSError: the file cannot be read.
    """
    try:
        document = json.loads(path.read_bytes(), parse_constant=_no_number)
    except ValueError as error:
        raise RunDocumentError(
            str(path), [f"this is no JSON: {error}; give the run.json that vllm-node bench wrote"]
        ) from None
    check(document, str(path))
    return document  # type: ignore[no-any-return]


def check(document: Any, where: str = "run document") -> None:
    """Whether the reports can show `document`.

    Raises:
        RunDocumentError: they cannot; it names every place that is wrong, up to ten.
    """
    if not isinstance(document, Mapping):
        raise RunDocumentError(where, ["this is no object; give the run.json that vllm-node bench wrote"])
    found = document.get("schema")
    if isinstance(found, int) and found > SCHEMA:
        raise RunDocumentError(
            where,
            [f"schema {found} is newer than {SCHEMA}, the newest known here: use the vllm-node that wrote it"],
        )
    problems = list(_problems(document))
    if problems:
        more = [f"and {len(problems) - _MOST} more"] if len(problems) > _MOST else []
        raise RunDocumentError(where, problems[:_MOST] + more)


def schema() -> Mapping[str, Any]:
    """The JSON Schema of run documents."""
    return json.loads(_PATH.read_bytes())  # type: ignore[no-any-return]


def _problems(document: Mapping[str, Any]) -> Iterator[str]:
    for error in sorted(_validator().iter_errors(document), key=lambda each: each.json_path):
        # Of alternatives the one that fits best says what is wrong; "valid under none of them" does not.
        inner = max(error.context or [error], key=lambda each: len(each.path))
        text = inner.message if len(inner.message) <= 200 else f"{inner.message[:80]} … {inner.message[-100:]}"
        yield f"{inner.json_path.removeprefix('$.')}: {text}"


@cache
def _validator() -> Any:
    # Only those who read documents of others pay for the import.
    import jsonschema

    return jsonschema.Draft202012Validator(schema())


def _no_number(word: str) -> NoReturn:
    raise ValueError(f"{word} is no number of JSON")
