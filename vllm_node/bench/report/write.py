"""Writes reports beside their documents."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vllm_node.bench.report import compare_page, document, html, markdown, run_page
from vllm_node.bench.report.page import Page


def run(found: Mapping[str, Any], folder: Path) -> list[Path]:
    """Write `run.json`, `report.md` and `report.html` into `folder`; the document first, so that it is safe.

    Raises:
        document.RunDocumentError: the document cannot be shown; `run.json` is written nevertheless.
    """
    path = _write(folder / "run.json", json.dumps(found, indent=1) + "\n")
    # What others will read is what the pages are made of.
    return [path, *_pages(run_page.page(document.read(path)), folder, "report")]


def comparison(found: Mapping[str, Any], folder: Path) -> list[Path]:
    """Write `comparison.json`, `comparison.md` and `comparison.html` of what `compare.compare` gave."""
    path = _write(folder / "comparison.json", json.dumps(found, indent=1) + "\n")
    return [path, *_pages(compare_page.page(found), folder, "comparison")]


def _pages(page: Page, folder: Path, name: str) -> list[Path]:
    return [
        _write(folder / f"{name}.md", markdown.render(page)),
        _write(folder / f"{name}.html", html.render(page)),
    ]


def _write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    # A reader never meets half of a report.
    partial = path.with_name(f".{path.name}")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)
    return path
