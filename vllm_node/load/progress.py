"""What is told while a stage runs: JSON lines on standard error, one a second."""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import time
from collections.abc import Callable
from typing import Any

from vllm_node.load.answer import first_content_ns
from vllm_node.load.arrivals import NS
from vllm_node.load.framing import Framing
from vllm_node.load.scrape import Scraper
from vllm_node.load.stage import Stage

EVERY_S = 1.0


def tell(**what: Any) -> None:
    """One line of progress."""
    sys.stderr.write(json.dumps(what) + "\n")
    sys.stderr.flush()


class Progress:
    """Tells about a stage until it is closed.

    `planned_s` is how long the window lasts, None when the stage ends with its last request. The times to first
    token are those of the answers that ended lately, at most twenty a second, so that looking costs little.
    """

    def __init__(
        self,
        stage: Stage,
        framing: Callable[[bool], Framing],
        planned_s: float | None,
        requests: int,
        scraper: Scraper | None,
    ) -> None:
        """Begin to tell."""
        self._stage = stage
        self._framing = framing
        self._planned_s = planned_s
        self._requests = requests
        self._scraper = scraper
        self._before = (time.monotonic(), 0)
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(EVERY_S, self._tick)

    def close(self) -> None:
        """Tell no more."""
        self._timer.cancel()

    def _tick(self) -> None:
        self._timer = self._loop.call_later(EVERY_S, self._tick)
        gc.collect(0)  # of what a failed connection leaves behind
        watch = self._stage.watch
        now = time.monotonic()
        since, sent = self._before
        self._before = (now, watch.sent)
        first = sorted(self._first_tokens_s())
        tell(
            event="progress",
            rate_per_s=round((watch.sent - sent) / (now - since), 2),
            sent=watch.sent,
            ended=watch.ended,
            failed=watch.failed,
            in_flight=watch.in_flight,
            running=self._gauge(1),
            waiting=self._gauge(2),
            ttft_s=round(first[len(first) // 2], 4) if first else None,
            left_s=self._left_s(now),
        )

    def _first_tokens_s(self) -> list[float]:
        found = []
        recent = self._stage.watch.recent
        while recent:
            scheduled, stamps, reads = recent.popleft()
            at = first_content_ns(self._framing(True), stamps, reads)
            if at is not None:
                found.append((at - scheduled) / NS)
        return found

    def _gauge(self, place: int) -> float | None:
        if self._scraper is None or not self._scraper.samples:
            return None
        return self._scraper.samples[-1][place]

    def _left_s(self, now: float) -> float | None:
        """Seconds to the end of the window; without one, by the pace so far."""
        begun = self._stage.start_ns / NS
        if self._planned_s is not None:
            return round(max(0.0, begun + self._planned_s - now), 1)
        ended = self._stage.watch.ended
        return round((self._requests - ended) * (now - begun) / ended, 1) if ended else None
