"""Runs of the engine as tests make them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.load.server import TimedServer
from vllm_node.load import records
from vllm_node.load.plan import parse
from vllm_node.load.records import Record
from vllm_node.load.run import run

BACKENDS = ("stdlib", "httptools")


def plan(server: TimedServer, **other: Any) -> dict[str, Any]:
    """A plan document against a server: a closed loop of one unless told otherwise."""
    return {
        "target": {"url": server.url, "model": "tiny"},
        "arrivals": {"kind": "closed", "clients": 1},
        "requests": {"kind": "generated", "count": 1, "vocabulary": [10, 1000], "prompt_tokens": 16, "output_tokens": 4},
        **other,
    }


def measure(document: Mapping[str, Any], folder: Path) -> tuple[dict[str, Any], list[Record]]:
    """The result and the records of a run."""
    result = run(parse(document, folder), folder, handle_signals=False)
    return result, sorted(records.read(folder / "records.bin"), key=lambda one: one.index)


def undisturbed(document: Mapping[str, Any], folder: Path, tries: int = 5) -> tuple[dict[str, Any], list[Record]]:
    """A run that its own self-check finds valid; other programs on the machine may void some."""
    for number in range(tries):
        result, taken = measure(document, folder / f"try-{number}")
        if result["selfcheck"]["valid"]:
            return result, taken
    raise AssertionError(f"{tries} runs were void, the last: {result['selfcheck']['reasons']}")


def requests_file(folder: Path, lines: Sequence[Mapping[str, Any]], api: str = "completions") -> dict[str, Any]:
    """The `requests` part of a plan for these requests; each gets a prompt where it has none."""
    folder.mkdir(parents=True, exist_ok=True)
    prompt = {"messages": [{"role": "user", "content": "x"}]} if api == "chat" else {"prompt": [1, 2, 3]}
    (folder / "requests.jsonl").write_text("".join(json.dumps({**prompt, **line}) + "\n" for line in lines))
    return {"kind": "file", "path": "requests.jsonl"}
