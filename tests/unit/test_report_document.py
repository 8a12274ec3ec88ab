"""Run documents are read, and what cannot be shown is refused with the place and the next step."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.unit import run_documents
from vllm_node.bench.report import document


def test_a_run_document_is_accepted(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_text(json.dumps(run_documents.run()))
    assert document.read(path) == run_documents.run()


def test_the_schema_is_a_schema_of_the_version_that_is_known() -> None:
    jsonschema.Draft202012Validator.check_schema(document.schema())
    assert document.schema()["properties"]["schema"]["const"] == document.SCHEMA


@pytest.mark.parametrize("field", document.schema()["required"])
def test_a_missing_field_is_named(field: str) -> None:
    found = run_documents.run()
    del found[field]
    with pytest.raises(document.RunDocumentError, match=field):
        document.check(found)


@pytest.mark.parametrize(
    ("keys", "value", "named"),
    [
        (("steps", 0, "repeats", 1, "client", "rates", "offered_per_s"), [1], r"steps\[0\].repeats\[1\].client.rates.offered_per_s"),
        (("steps", 1, "repeats", 0, "server", "figures", "kv_usage_max", "how"), "guessed", r"steps\[1\].repeats\[0\].server.figures.kv_usage_max.how"),
        (("steps", 0, "repeats", 0, "client", "counts", "by_kind"), {"reset": -1}, "by_kind.reset"),
        (("verdict", "verdict"), "great", "'great' is not one of"),
        (("correctness", 0, "outcome"), "maybe", "correctness"),
        (("slo", "ttft_p95_s"), "fast", "slo.ttft_p95_s"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(keys: tuple[str | int, ...], value: Any, named: str) -> None:
    found = run_documents.run()
    place: Any = found
    for key in keys[:-1]:
        place = place[key]
    place[keys[-1]] = value
    with pytest.raises(document.RunDocumentError, match=named):
        document.check(found)


def test_many_problems_are_counted() -> None:
    found = run_documents.run(slo={f"promise_{number}": "fast" for number in range(14)})
    with pytest.raises(document.RunDocumentError, match="and 4 more") as caught:
        document.check(found)
    assert len(caught.value.problems) == 11


def test_a_newer_schema_is_refused_with_the_next_step() -> None:
    with pytest.raises(document.RunDocumentError, match=r"schema 2 is newer than 1.*use the vllm-node that wrote it"):
        document.check(run_documents.run(schema=2))


@pytest.mark.parametrize("text", ["", "{", "[]", "7", '{"schema": NaN}', '{"schema": Infinity}'])
def test_what_is_no_document_is_refused_with_the_file(tmp_path: Path, text: str) -> None:
    path = tmp_path / "other.json"
    path.write_text(text)
    with pytest.raises(document.RunDocumentError, match=r"other\.json: this is no"):
        document.read(path)
