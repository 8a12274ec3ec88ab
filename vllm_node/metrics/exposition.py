"""Schema of a page of metrics that somebody saved, in the form that the module `metrics_schema` gives on a node."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

_TYPE = re.compile(r"^#\s*TYPE\s+(\S+)", re.MULTILINE)
_PARTS = {"histogram": ("_bucket", "_sum", "_count"), "summary": ("_sum", "_count")}
_SPECIAL = {"histogram": ("le", "edges"), "summary": ("quantile", "quantiles")}


def schema_of(text: str) -> dict[str, dict[str, Any]]:
    """Family → type, unit, labels, edges, quantiles, suffixes, series; what is empty is left out.

    Raises:
        ValueError: the text is not in Prometheus' format.
    """
    declared = set(_TYPE.findall(text))
    families = (each for family in text_string_to_metric_families(text) for each in _families(family, declared))
    return dict(sorted(families))


def _families(family: Metric, declared: set[str]) -> list[tuple[str, dict[str, Any]]]:
    """The library's families by their names on the wire: it gives each counter `_total`, those of DCGM have none."""
    kind = "untyped" if family.type == "unknown" else family.type
    grouped: dict[str, list[tuple[str, Mapping[str, str]]]] = {}
    for sample in family.samples:
        suffix = sample.name.removeprefix(family.name)
        owner = family.name if suffix in _PARTS.get(kind, ()) else sample.name
        if kind == "counter" and owner not in declared and family.name in declared:
            owner, suffix = family.name, ""
        grouped.setdefault(owner, []).append((suffix if owner == family.name else "", sample.labels))
    return [(owner, _said(kind, family.unit, samples)) for owner, samples in grouped.items()]


def _said(kind: str, unit: str, samples: list[tuple[str, Mapping[str, str]]]) -> dict[str, Any]:
    special, place = _SPECIAL.get(kind, ("", ""))
    suffixes = sorted({suffix for suffix, _ in samples})
    values = {labels[special] for _, labels in samples if special in labels}
    said = {
        "type": kind,
        "unit": unit or None,
        "labels": sorted({label for _, labels in samples for label in labels} - {special}),
        place: sorted(values, key=float),
        "suffixes": [] if suffixes == [""] else suffixes,
        "series": len(samples),
    }
    return {key: value for key, value in said.items() if key and value}
