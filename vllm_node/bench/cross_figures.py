"""Which figure of ours can be held against which of `vllm bench serve`, and whether the two clients agree."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from vllm_node.bench.agreement import silent_share
from vllm_node.bench.report.numbers import is_number, shown, unit_of
from vllm_node.bench.report.page import resolve
from vllm_node.load.distribution import INSUFFICIENT, samples_needed

PEER = "vllm bench serve"
BOUND = 0.03
# The peer's clock runs while it writes the body and looks for a connection: 1.6 to 2.3 ms in the mean and 2.8 ms at p95
# where this was tried, at 4 and 20 requests/s against a server whose times are known, on cores of its own. So much more
# than ours is its own; less than ours would not be.
LATER_S = 0.003
# Either clock reads a single event when its loop comes to it. In a mean these errors cancel out, in a percentile not.
GAP_S = 0.001
# Where more events than this have no text, the peer counts tokens that ours does not.
_SILENT = 0.01
_NOT_COMPARABLE = "not comparable: many events had no text, and only the peer counts these as tokens"
_RUNS_NEEDED = 2
_LATER = f"so that it may say up to {LATER_S * 1000:g} ms more"
_HOW = {
    "ttft": "send to first token; the peer's clock starts before it has written the body and found a connection, "
    f"{_LATER}",
    "tpot": "(last token - first token) / (output tokens - 1) of each answer, tokens by the server's usage, in both",
    "itl": "gaps between events with a token, of all answers together, in both; a percentile may be off by "
    f"{GAP_S * 1000:g} ms, as either clock reads an event when its loop comes to it",
    "e2e": "ours to the last byte, the peer's to the last token, which are neighbours in a stream; its clock starts "
    f"early as for TTFT, {_LATER}",
    "completed_per_s": "answers that ended within the time that the arrivals take; of the peer out of its single "
    "requests, as its own request_throughput also counts the time of the last answers",
    "prompt_tokens": "sum of the server's usage, in both",
    "output_tokens": "sum of the server's usage, in both",
}
# Our name of a latency, the engine's, and the peer's.
_LATENCIES = (
    ("ttft", "ttft_sent_s", "ttft"),
    ("tpot", "tpot_s", "tpot"),
    ("itl", "itl_s", "itl"),
    ("e2e", "e2e_sent_s", "e2el"),
)
_STATISTICS = {"mean": None, "p50": 0.5, "p95": 0.95}
_COUNTS = {"prompt_tokens": "total_input_tokens", "output_tokens": "total_output_tokens"}
_TITLES = {
    "completed_per_s": "completed requests/s",
    "prompt_tokens": "prompt tokens",
    "output_tokens": "output tokens",
}

Result = Mapping[str, Any]


def judged(
    ours: Sequence[Result], theirs: Sequence[Result], requests: int, failed: str | None = None
) -> dict[str, Any]:
    """`figures`, `agrees`, `why` and `bound` of a comparison.

    ours: results of the engine; theirs: of the peer, as the module `peer_run` gives them; requests: of each run;
    failed: why there are no more. Each figure has `ours` and `peer` (medians of the runs), their `ratio`, `allowed`
    (how far apart they may be), `within` (None: it cannot be told), `how`, `ours_runs` and `peer_runs`; times in
    seconds.

    Means, medians, throughput and counts decide: `agrees` is False when one of them is outside. It is None when a mean,
    the throughput or a count cannot be judged; `why` then begins with "insufficient". p95 is that of the few slowest
    answers, which differ from run to run: it is shown, and decides nothing. Runs of one client that differ by more than
    is allowed judge nothing, unless even the two runs that are nearest to each other are too far apart.
    """
    good = [one for one in ours if not _flaws(one, requests)]
    compared = [_Compared(pair, good, theirs) for pair in _pairs(good)]
    agrees, why = _verdict(ours, good, theirs, requests, failed, compared)
    return {"figures": [one.document() for one in compared], "agrees": agrees, "why": why, "bound": BOUND}


def title(name: str) -> str:
    """A figure's name for people."""
    return _TITLES.get(name) or f"{name.split('_')[0].upper()} {name.split('_')[1]}"


@dataclass(frozen=True)
class _Pair:
    """A figure in both. `later_s`: so much more the peer may say; `either_s`: so far apart they may be in any case.

    `decides`: there is no agreement against it; `needed`: nor without it.
    """

    name: str
    how: str
    ours: Callable[[Result], Any]
    theirs: Callable[[Result], Any]
    bound: float = BOUND
    later_s: float = 0.0
    either_s: float = 0.0
    decides: bool = True
    needed: bool = True

    def allowed(self, ours: float, theirs: float) -> float:
        """How far apart these two may be."""
        return max(self.bound * abs(ours), self.either_s, self.later_s if theirs > ours else 0.0)

    def near(self, ours: float, theirs: float) -> bool:
        """Whether they are no further apart."""
        return abs(theirs - ours) <= self.allowed(ours, theirs)


def _pairs(ours: Sequence[Result]) -> Iterator[_Pair]:
    for name, own, peer in _LATENCIES:
        for statistic, quantile in _STATISTICS.items():
            mean = quantile is None
            yield _Pair(
                f"{name}_{statistic}_s",
                _HOW[name],
                partial(_at, ("latency", own, statistic)),
                partial(_of_peer, peer, statistic, quantile),
                later_s=LATER_S if name in ("ttft", "e2e") else 0.0,
                either_s=GAP_S if name == "itl" and not mean else 0.0,
                decides=statistic != "p95",
                needed=mean,
            )
    seconds = min((one["window"]["seconds"] for one in ours), default=0.0)
    name = "completed_per_s"
    yield _Pair(name, _HOW[name], partial(_at, ("rates", name)), partial(_completed_per_s, seconds))
    for name, peer in _COUNTS.items():
        yield _Pair(name, _HOW[name], partial(_at, ("counts", name)), partial(_at, (peer,)), bound=0.0)


def _at(keys: Sequence[str], result: Result) -> Any:
    """What stands in a result; the peer's may lack it in another version."""
    return resolve(result, keys)


def _of_peer(name: str, statistic: str, quantile: float | None, result: Result) -> Any:
    """Seconds. The peer gives percentiles of any number of samples, also of two."""
    if quantile is not None and name != "itl" and (result.get("completed") or 0) < samples_needed(quantile):
        return INSUFFICIENT
    value: Any = result.get(f"{statistic}_{name}_ms")
    return value / 1000 if is_number(value) else None


def _completed_per_s(seconds: float, result: Result) -> float | None:
    """In a window like ours: from the first send, as long as the arrivals take."""
    starts, latencies = result.get("start_times"), result.get("latencies")
    if not starts or not latencies or seconds <= 0:
        return None
    until = min(starts) + seconds
    ended = sum(1 for start, took in zip(starts, latencies, strict=True) if start + took <= until)
    return ended / seconds


class _Compared:
    """A figure of all runs."""

    def __init__(self, pair: _Pair, ours: Sequence[Result], theirs: Sequence[Result]) -> None:
        self.pair = pair
        self.own, self.peer = [pair.ours(one) for one in ours], [pair.theirs(one) for one in theirs]
        self.ours, self.theirs = _median(self.own), _median(self.peer)
        self.how = pair.how
        self.allowed: float | None = None
        self.within: bool | None = None
        # Which client's runs differ too much, and by what share of their median.
        self.varied: tuple[str, float] | None = None
        if not (is_number(self.ours) and is_number(self.theirs)):
            return
        self.allowed = pair.allowed(self.ours, self.theirs)
        if pair.name.startswith(("ttft", "tpot", "itl")) and any((silent_share(one) or 0.0) > _SILENT for one in ours):
            self.how = f"{_NOT_COMPARABLE}; {pair.how}"
            return
        self._judge(max(self.allowed, pair.later_s))

    def _judge(self, room: float) -> None:
        for who, values, median in (("ours", self.own, self.ours), (PEER, self.peer, self.theirs)):
            width = max(values) - min(values)
            if width > room and self.varied is None:
                self.varied = (who, width / median)
        if self.varied is None:
            self.within = self.pair.near(self.ours, self.theirs)
            return
        below, above = max(self.peer) < min(self.own), min(self.peer) > max(self.own)
        nearest = (min(self.own), max(self.peer)) if below else (max(self.own), min(self.peer))
        if (below or above) and not self.pair.near(*nearest):
            self.within = False

    @property
    def title(self) -> str:
        return title(self.pair.name)

    @property
    def only_by_the_clock(self) -> bool:
        """Whether it is within for what the clocks add, and not for the bound."""
        return bool(self.within) and abs(self.theirs - self.ours) > self.pair.bound * abs(self.ours)

    def sides(self) -> str:
        """Both values for people."""
        unit = unit_of(self.pair.name)
        return f"{self.title} {shown(self.ours, unit)} and {shown(self.theirs, unit)}"

    def lacks(self) -> str:
        """Why it cannot be judged."""
        if self.varied is None:
            why = _NOT_COMPARABLE if self.how.startswith(_NOT_COMPARABLE) else "one of the two has no such figure"
            return f"{self.title}: {why}"
        who, share = self.varied
        what = "the server itself varied by" if who == "ours" else "the peer's own runs varied by"
        return f"{what} {shown(round(share, 3), 'share')} ({self.title})"

    def document(self) -> dict[str, Any]:
        numbers = is_number(self.ours) and is_number(self.theirs)
        return {
            "name": self.pair.name,
            "ours": self.ours,
            "peer": self.theirs,
            "ratio": self.ours / self.theirs if numbers and self.theirs else None,
            "allowed": self.allowed,
            "within": self.within,
            "how": self.how,
            "ours_runs": self.own,
            "peer_runs": self.peer,
        }


def _verdict(
    ours: Sequence[Result],
    good: Sequence[Result],
    theirs: Sequence[Result],
    requests: int,
    failed: str | None,
    compared: Sequence[_Compared],
) -> tuple[bool | None, str]:
    if failed:
        return None, f"{INSUFFICIENT}: {failed}"
    if len(good) < _RUNS_NEEDED:
        flaws = dict.fromkeys(flaw for one in ours for flaw in _flaws(one, requests))
        return None, f"{INSUFFICIENT}: of our {len(ours)} runs {len(good)} can be used ({'; '.join(flaws)})"
    lost = [requests - (one.get("completed") or 0) for one in theirs]
    if any(lost) or not theirs:
        return None, f"{INSUFFICIENT}: {sum(lost)} of the peer's {len(theirs) * requests} requests did not complete"
    outside = [one for one in compared if one.within is False]
    against = [one.sides() for one in outside if one.pair.decides]
    if against:
        return False, f"ours and the peer's are further apart than is allowed: {'; '.join(against)}"
    lacking = [one.lacks() for one in compared if one.pair.needed and one.within is None]
    if lacking:
        return None, f"{INSUFFICIENT}: {'; '.join(lacking)}"
    said = [f"within {shown(BOUND, 'share')}"]
    clock = [one.title for one in compared if one.only_by_the_clock]
    if clock:
        said.append(f"by the clocks' allowance only: {', '.join(clock)}")
    if outside:
        said.append(f"only the slowest answers differ by more: {', '.join(one.sides() for one in outside)}")
    aside = [one.title for one in compared if one.within is None]
    if aside:
        said.append(f"not judged, as runs differ among themselves or have too few samples: {', '.join(aside)}")
    if len(good) < len(ours):
        said.append(f"{len(ours) - len(good)} of our {len(ours)} runs left out, as it was void or not complete")
    return True, "; ".join(said)


def _flaws(result: Result, requests: int) -> list[str]:
    """Why a run of ours says nothing."""
    found = list(result["selfcheck"]["reasons"])
    counts = result["counts"]
    if result.get("stopped"):
        found.append(f"it ended early: {result['stopped']}")
    elif counts["completed"] != requests:
        kinds = ", ".join(f"{times} {kind}" for kind, times in counts.get("by_kind", {}).items())
        found.append(f"{requests - counts['completed']} of {requests} requests did not complete ({kinds})")
    return found


def _median(values: Sequence[Any]) -> Any:
    """Of numbers; a word or None where one of them is none."""
    for one in values:
        if not is_number(one):
            return one
    return statistics.median(values) if values else None
