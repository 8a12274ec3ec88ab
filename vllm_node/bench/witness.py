"""What the server says about a stage: its Prometheus, or the pages of metrics that the load generator kept."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vllm_node.bench import answers, server
from vllm_node.bench.generator import Staged
from vllm_node.bench.window import Window

# The last scrape of the window has to be in Prometheus before it is asked.
_SETTLE_SCRAPES = 2
_NAP_S = 0.5


@dataclass(frozen=True)
class Witness:
    """Whom to ask about an instance. `ask` runs a module on the node; without `prometheus` there is none."""

    ask: Callable[..., dict[str, Any]]
    instance: str
    model: str
    gpus: Sequence[str]
    prometheus: str | None
    scrape_interval_s: float
    stopped: Callable[[], bool]

    def figures(self, stage: Staged, version: str | None) -> tuple[dict[str, Any] | None, str | None]:
        """The server's part of a repeat, and what was in the way of it or of its better source."""
        try:
            window = Window.of(stage.result)
        except ValueError as error:
            return None, str(error)
        found, why = None, None
        if self.prometheus is not None:
            found, why = self._asked(window, version)
        if found is not None:
            return found, None
        if stage.pages is None:
            return None, "; ".join(filter(None, (why, stage.no_pages)))
        found = self._read(stage.pages, window, version)
        if why is not None:
            found["notices"].insert(0, f"{why}; the server's figures are of the pages that the generator kept")
        return found, why

    def _asked(self, window: Window, version: str | None) -> tuple[dict[str, Any] | None, str | None]:
        """Figures of Prometheus, or None and why not."""
        settled = window.end + _SETTLE_SCRAPES * self.scrape_interval_s
        while (left := settled - time.time()) > 0:
            if self.stopped():
                return None, "the run was interrupted, and Prometheus was not waited for"
            time.sleep(min(_NAP_S, left))
        queries = answers.queries(window, self.instance, self.model, version)
        told = self.ask("prometheus_query", url=self.prometheus, queries=queries, at=window.end)
        if told.get("failed"):
            return None, f"Prometheus could not be asked ({told.get('msg')})"
        found = server.figures(told["answers"], window, self.gpus)
        if not found["timeline"]["t_s"] and found["refused"] is None:
            return None, "Prometheus has no sample of this instance in the window"
        return found, None

    def _read(self, pages: bytes, window: Window, version: str | None) -> dict[str, Any]:
        with tempfile.TemporaryDirectory(prefix="vllm-node-pages-") as folder:
            path = Path(folder) / "metrics.jsonl.gz"
            path.write_bytes(pages)
            return server.figures_from_scrapes(server.read_pages(path), window, model=self.model, version=version)
