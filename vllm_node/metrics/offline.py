"""The check without a node: over schemas that were saved, and over pages of metrics that somebody saved."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from vllm_node.metrics import schema
from vllm_node.metrics.check import check
from vllm_node.metrics.dictionary import load
from vllm_node.metrics.exposition import schema_of
from vllm_node.metrics.problems import Report
from vllm_node.metrics.uses import all_uses


def check_files(schemas: Iterable[Path], scrapes: Sequence[str]) -> list[Report]:
    """A report on each schema, and one on all `scrapes` (JOB=FILE or JOB@VERSION=FILE) together.

    Raises:
        ValueError: a file cannot be read or is of another kind, or a scrape names no job.
    """
    uses = all_uses()
    reports = [check(str(path), uses, schema.read(path)) for path in schemas]
    if scrapes:
        reports.append(check("these pages", uses, [_scrape(text) for text in scrapes]))
    return reports


def _scrape(text: str) -> schema.Endpoint:
    whose, equals, file = text.partition("=")
    job, _, version = whose.partition("@")
    if not equals or job not in load().jobs():
        raise ValueError(f"{text}: give JOB=FILE or JOB@VERSION=FILE; jobs are {', '.join(load().jobs())}")
    try:
        metrics = schema_of(Path(file).read_text())
    except OSError as error:
        raise ValueError(f"{file}: {error.strerror}") from error
    except ValueError as error:
        raise ValueError(f"{file} is no page of metrics: {error}") from error
    found = {"job": job, "instance": job, "url": file, "state": "ok", "version": version or None, "metrics": metrics}
    return schema.parse([found])[0]
