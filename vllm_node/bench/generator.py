"""The load generator on a node: sent there, watched while a stage runs, and its result brought back."""

from __future__ import annotations

import base64
import io
import tarfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vllm_node import load

Module = Callable[..., dict[str, Any]]
"""Runs the module `load_run` on the node with these arguments and gives its result."""


class StageError(Exception):
    """A stage gave no result; the text has what the node or the generator said."""


@dataclass(frozen=True)
class Staged:
    """What a stage gave: the generator's result, and the server's pages of metrics (gzip), None with the reason."""

    result: dict[str, Any]
    pages: bytes | None = None
    no_pages: str = "nobody kept pages of the server's metrics"


def stage(
    module: Module,
    plan: Mapping[str, Any],
    show: Callable[[str], None],
    stopped: Callable[[], bool] = lambda: False,
    **more: Any,
) -> Staged:
    """Run one stage and give what came of it, a partial result when it was cut off.

    The stage is ended early once `stopped` says so; it is asked between two looks at the node. `more` goes to the
    module: `reference` of the image, `cpus`, `limit_s`, and `files` beside the plan, by name, which are sent first.

    Raises:
        StageError: there is no result.
    """
    _good(module(state="begin", generator=package(), plan=dict(plan), **more))
    started_at = time.monotonic()
    try:
        while not stopped():
            look = _good(module(state="look"))
            if not look["running"]:
                break
            show(f"{time.monotonic() - started_at:.0f} s: {told(look['progress'])}")
        else:
            show("interrupted: the stage is ended, and what was measured is kept")
    finally:
        # Also when somebody interrupts: the generator then writes what it has, and the node is left clean.
        collected = module(state="collect")
    if "result" not in _good(collected):
        raise StageError(f"the generator gave no result; its last words:\n{collected.get('said')}")
    if "pages" in collected:
        return Staged(collected["result"], base64.b64decode(collected["pages"]))
    return Staged(collected["result"], None, collected.get("no_pages", Staged.no_pages))


def _good(answer: dict[str, Any]) -> dict[str, Any]:
    if answer.get("failed"):
        raise StageError(str(answer.get("msg")))
    return answer


def package() -> str:
    """The generator's package as a tar file in base64: it needs nothing else of this project."""
    folder = Path(load.__file__).parent
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        for path in sorted(folder.glob("*.py")):
            tar.add(path, arcname=f"vllm_node/load/{path.name}")
        # The real one holds the texts of the command line.
        tar.addfile(tarfile.TarInfo("vllm_node/__init__.py"))
    return base64.b64encode(out.getvalue()).decode()


def told(progress: Mapping[str, Any]) -> str:
    """One line for people from the generator's last word."""
    if progress.get("event") != "progress":
        return str(progress.get("event") or "starting")
    words = [f"{progress.get('rate_per_s', '?')} requests/s", f"{progress.get('in_flight', '?')} in flight"]
    words += [f"{progress[key]:g} {key}" for key in ("running", "waiting") if progress.get(key) is not None]
    if progress.get("failed"):
        words.append(f"{progress['failed']} failed")
    if progress.get("ttft_s") is not None:
        words.append(f"first token after {progress['ttft_s'] * 1000:.0f} ms")
    if progress.get("left_s") is not None:
        words.append(f"{progress['left_s']:.0f} s left")
    return ", ".join(words)
