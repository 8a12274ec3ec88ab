"""What counts: every figure of a stage out of its records, in one pass.

DEFINITIONS is printed with each result, so that a figure never stands without its meaning.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from vllm_node.load.arrivals import NS
from vllm_node.load.distribution import Distribution
from vllm_node.load.records import OK, Record
from vllm_node.load.slo import Slo

DEFINITIONS = {
    "ttft_scheduled_s": "scheduled arrival to the first event with content: what a user waits",
    "ttft_sent_s": "send to the first event with content; an event with only a role or empty text is none",
    "tpot_s": "(last content - first content) / (output tokens - 1), for each answer of two tokens or more; output "
    "tokens are the server's usage",
    "itl_s": "every gap between content events",
    "e2e_scheduled_s": "scheduled arrival to the last byte",
    "e2e_sent_s": "send to the last byte",
    "connect_s": "time to a connection, for the requests that had to make one",
    "offered": "requests that were due in the window, sent or not",
    "admitted": "of these, answered with status 200",
    "completed": "of these, answered to the end with content",
    "completed_per_s": "answers that ended inside the window, whenever they began",
    "goodput_requests_per_s": "offered requests that completed and met every SLO, by the window's length; one whose "
    "TPOT cannot be observed meets no TPOT SLO",
    "error_rate": "(errors + time-outs + refusals) / offered; cancelled and held back requests are counted apart",
    "timed_out": "requests that ran into a time-out before the event in question: slower than every number here",
}
LABELS = {
    "counts": "measured",
    "latency": "measured",
    "tpot_s": "derived",
    "rates": "derived",
    "left_out": "measured",
}


@dataclass(frozen=True)
class Window:
    """The scored time, in nanoseconds of `time.monotonic_ns`."""

    start_ns: int
    end_ns: int

    @property
    def seconds(self) -> float:
        """Its length."""
        return (self.end_ns - self.start_ns) / NS


class Figures:
    """Takes records and gives the figures. Only requests that are scored count, but for `completed_per_s`."""

    def __init__(self, window: Window, wanted: Slo, gpus: int | None = None) -> None:
        """No record has been taken; `gpus` are those allocated to the server."""
        self.window = window
        self.slo = wanted
        self.gpus = gpus
        self.latency = {
            name: Distribution()
            for name in (
                "ttft_scheduled_s",
                "ttft_sent_s",
                "tpot_s",
                "itl_s",
                "e2e_scheduled_s",
                "e2e_sent_s",
                "connect_s",
            )
        }
        self.groups: Counter[str] = Counter()
        self.kinds: Counter[str] = Counter()
        self.details: dict[str, str] = {}
        self.offered = self.sent = self.admitted = 0
        self.completed_inside = self.tokens_inside = 0
        self.good = self.good_tokens = self.unjudged = 0
        self.one_token = self.no_usage = self.uneven = 0
        self.prompt_tokens = self.output_tokens = 0
        self.cached_tokens: int | None = None
        self.empty_events = 0

    def extend(self, records: Iterable[Record]) -> Figures:
        """Take many."""
        for record in records:
            self.add(record)
        return self

    def add(self, record: Record) -> None:
        """Take one."""
        if record.kind == OK and self.window.start_ns <= record.end <= self.window.end_ns:
            self.completed_inside += 1
            self.tokens_inside += record.output_tokens or 0
        if not record.scored:
            return
        self.offered += 1
        self.groups[record.group] += 1
        self.sent += record.sent > 0
        self.admitted += record.status == 200
        self.empty_events += record.empty_events
        if record.kind != OK:
            self.kinds[record.kind] += 1
            self.details.setdefault(record.kind, record.detail)
        self._first_token(record)
        if record.sent and record.sent - record.started > 200_000:
            self.latency["connect_s"].add((record.sent - record.started) // 1000)
        if record.kind == OK:
            self._completed(record)
        elif record.group == "timeout":
            self.latency["e2e_sent_s"].timed_out += 1
            self.latency["e2e_scheduled_s"].timed_out += 1

    def _first_token(self, record: Record) -> None:
        """An answer that broke off later had its first token all the same."""
        sent, scheduled = record.ttft_sent_us(), record.ttft_scheduled_us()
        if sent is not None and scheduled is not None:
            self.latency["ttft_sent_s"].add(sent)
            self.latency["ttft_scheduled_s"].add(scheduled)
            self.latency["itl_s"].extend(record.gaps_us())
        elif record.group == "timeout":
            self.latency["ttft_sent_s"].timed_out += 1
            self.latency["ttft_scheduled_s"].timed_out += 1

    def _completed(self, record: Record) -> None:
        self.latency["e2e_sent_s"].add(record.e2e_sent_us())
        self.latency["e2e_scheduled_s"].add(record.e2e_scheduled_us())
        self.prompt_tokens += record.prompt_tokens or 0
        if record.cached_tokens is not None:
            self.cached_tokens = (self.cached_tokens or 0) + record.cached_tokens
        tokens = record.output_tokens
        if tokens is None:
            self.no_usage += 1
        else:
            self.output_tokens += tokens
            self.one_token += tokens < 2
            self.uneven += tokens != len(record.contents_us)
        tpot = record.tpot_us()
        if tpot is not None:
            self.latency["tpot_s"].add(round(tpot))
        met = self.met(record)
        if met:
            self.good += 1
            self.good_tokens += tokens or 0
        self.unjudged += met is None

    def met(self, record: Record) -> bool | None:
        """Whether a completed request met every SLO; None when one of these cannot be observed in it."""
        bounds = (
            (self.slo.ttft_p95_s, record.ttft_scheduled_us()),
            (self.slo.tpot_p95_s, record.tpot_us()),
            (self.slo.e2e_p95_s, record.e2e_scheduled_us()),
        )
        judged = [None if seen is None else seen <= limit * 1e6 for limit, seen in bounds if limit is not None]
        if False in judged:
            return False
        return None if None in judged else True

    @property
    def failed(self) -> int:
        """Offered requests that the server failed; what the run itself cancelled or held back is not among them."""
        return sum(self.groups[name] for name in ("error", "timeout", "refused"))

    @property
    def error_rate(self) -> float | None:
        """Share of the offered requests that failed; None when nothing was offered."""
        return self.failed / self.offered if self.offered else None

    def per_s(self, count: float) -> float | None:
        """A count by the length of the window; None for a window of no length."""
        return count / self.window.seconds if self.window.seconds > 0 else None

    def document(self) -> dict[str, Any]:
        """All figures as they stand in a result."""
        rates = {
            "offered_per_s": self.per_s(self.offered),
            "admitted_per_s": self.per_s(self.admitted),
            "completed_per_s": self.per_s(self.completed_inside),
            "output_tokens_per_s": self.per_s(self.tokens_inside),
            "goodput_requests_per_s": self.per_s(self.good),
            "goodput_tokens_per_s": self.per_s(self.good_tokens),
        }
        return {
            "counts": {
                "offered": self.offered,
                "sent": self.sent,
                "admitted": self.admitted,
                "completed": self.groups[OK],
                "errors": self.groups["error"],
                "timeouts": self.groups["timeout"],
                "refused": self.groups["refused"],
                "cancelled": self.groups["cancelled"],
                "held_back": self.groups["held_back"],
                "by_kind": dict(sorted(self.kinds.items())),
                "examples": dict(sorted(self.details.items())),
                "good": self.good,
                "unjudged": self.unjudged,
                "empty_events": self.empty_events,
                "prompt_tokens": self.prompt_tokens,
                "cached_tokens": self.cached_tokens,
                "output_tokens": self.output_tokens,
            },
            "rates": rates,
            "per_gpu": {
                name: value / self.gpus for name, value in rates.items() if value is not None and self.gpus is not None
            },
            "error_rate": self.error_rate,
            "goodput_share": self.good / self.offered if self.offered else None,
            "latency": {name: one.summary() for name, one in self.latency.items()},
            "histograms": {name: one.histogram() for name, one in self.latency.items()},
            "left_out": {"tpot_one_token": self.one_token, "tpot_no_usage": self.no_usage},
            "notices": self.notices(),
        }

    def notices(self) -> list[str]:
        """What a reader has to know beside the numbers."""
        completed = self.groups[OK]
        found = []
        if self.uneven:
            found.append(
                f"in {self.uneven} of {completed} answers the number of content events is not the number of tokens: "
                "ITL is the gap between events, not between tokens"
            )
        if self.no_usage:
            found.append(f"{self.no_usage} of {completed} answers had no usage: their tokens and TPOT are unobservable")
        if self.one_token:
            found.append(f"{self.one_token} of {completed} answers had fewer than two tokens and so no TPOT")
        if self.unjudged:
            found.append(f"{self.unjudged} completed requests are in no goodput: an SLO cannot be observed in them")
        if self.groups["cancelled"]:
            found.append(f"{self.groups['cancelled']} requests were cancelled by this run; they are no errors")
        if self.groups["held_back"]:
            found.append(f"{self.groups['held_back']} requests were held back by limits.in_flight")
        return found
