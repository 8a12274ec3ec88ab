"""Looks at the server's /metrics while a stage runs; a thread asks, so that the event loop never waits for it."""

from __future__ import annotations

import gzip
import json
import re
import threading
import time
import urllib.request
from pathlib import Path
from typing import TextIO

from vllm_node.load.arrivals import NS

_GAUGE = re.compile(r"^vllm:num_requests_(waiting|running)(?:\{[^}]*\})? (\S+)", re.MULTILINE)
_TIMEOUT_S = 5.0


def running_and_waiting(text: str) -> dict[str, float]:
    """Requests that run and wait, summed over engines; a gauge that is not there is missing."""
    found: dict[str, float] = {}
    for name, value in _GAUGE.findall(text):
        found[name] = found.get(name, 0.0) + float(value)
    return found


class Scraper:
    """Asks every `every_s` seconds until it is closed, and writes each page to a compressed file of JSON lines.

    `samples` are (time.monotonic_ns, running, waiting). What failed is counted in `failures`, with the last error.
    """

    def __init__(self, url: str, every_s: float, path: Path) -> None:
        """Begin to ask."""
        self.samples: list[tuple[int, float | None, float | None]] = []
        self.failures = 0
        self.error: str | None = None
        self._url = url
        self._every_s = every_s
        self._path = path
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, name="scrape", daemon=True)
        self._thread.start()

    def waiting(self, start_ns: int, end_ns: int) -> list[tuple[float, float]]:
        """(seconds after `start_ns`, waiting requests) between two times."""
        return [
            ((at - start_ns) / NS, waiting)
            for at, _, waiting in self.samples
            if waiting is not None and start_ns <= at <= end_ns
        ]

    def close(self) -> None:
        """Stop asking."""
        self._stop.set()
        self._thread.join()

    def _work(self) -> None:
        with gzip.open(self._path, "wt", compresslevel=1) as file:
            due = time.monotonic()
            while not self._stop.wait(max(0.0, due - time.monotonic())):
                due = max(due + self._every_s, time.monotonic())
                self._ask(file)

    def _ask(self, file: TextIO) -> None:
        at_ns, at_s = time.monotonic_ns(), time.time()
        try:
            with urllib.request.urlopen(self._url, timeout=_TIMEOUT_S) as answer:  # noqa: S310 - the plan's own address
                text = answer.read().decode()
        except (OSError, ValueError) as error:
            self.failures += 1
            self.error = str(error)
            return
        seen = running_and_waiting(text)
        self.samples.append((at_ns, seen.get("running"), seen.get("waiting")))
        file.write(json.dumps({"at_ns": at_ns, "at_s": at_s, "text": text}) + "\n")
