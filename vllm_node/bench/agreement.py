"""Whether the client and the server tell the same story: what one measured must lie within the other's buckets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vllm_node.bench.report.numbers import is_number, shown

# A server cannot know when a request was due, so it is held against the client's times from the send.
_PAIRS = {"ttft": "ttft_sent_s", "e2e": "e2e_sent_s", "tpot": "tpot_s", "itl": "itl_s"}
_STATISTICS = ("mean", "p50", "p95", "p99")
# The two do not count the same requests near the ends of the window, so a bucket is taken that much wider. A mean has
# none: it gets more room, as it moves with every request, and still less than any bucket has.
_ENDS, _MEAN = 0.10, 0.20
# The server's clock starts when it has read a request and stops before it has written the answer. What lies between
# the two is the client's to wait; it cancels out in the gaps between tokens.
_WAY_S = {"ttft": 0.005, "e2e": 0.005}
# Beyond this share of tokens without a text (or answers of one token) the two measure different things.
_ALIKE = 0.01


def story(client_result: Mapping[str, Any], server_figures: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """The part `agreement` of a repeat: `agrees`, `says` (one line) and `figures` (see `agree`).

    `agrees` is None where nothing can be compared. None: the server told nothing of this window.
    """
    if server_figures is None or server_figures.get("refused"):
        return None
    figures = agree(client_result, server_figures)
    against = [one["says"] for one in figures if one["agrees"] is False]
    compared = [one for one in figures if one["agrees"] is not None and one["figure"] != "requests"]
    if against:
        more = f" (and {len(against) - 1} more)" if len(against) > 1 else ""
        says = f"client and server contradict each other: {against[0]}{more}"
    elif compared:
        says = (
            f"client and server tell the same story: of {len(figures) - 1} latencies {len(compared)} can be compared, "
            "and each lies in the server's bucket or beside its mean"
        )
    else:
        says = f"client and server cannot be compared ({figures[0]['says']})"
    return {"agrees": False if against else True if compared else None, "says": says, "figures": figures}


def agree(client_result: Mapping[str, Any], server_figures: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One entry for mean, p50, p95 and p99 of TTFT, E2E, TPOT and ITL, and one for the number of requests.

    client_result: the engine's `result.json`; server_figures: of the same window. Each entry has `figure`, `client`
    and `server` (seconds, a word or None), `difference` (client - server), `bucket` (the server's, in seconds; None for
    a mean, which is exact), `agrees` (None: it cannot be told) and `says`, a sentence.
    """
    if server_figures.get("refused"):
        return []
    figures = server_figures.get("figures") or {}
    requests = _requests(client_result, figures)
    found = []
    for name, latency in _PAIRS.items():
        # Of different requests the latencies may differ as they like.
        why_not = "the two did not count the same requests" if requests["agrees"] is False else None
        why_not = why_not or _unlike(name, client_result)
        for statistic in _STATISTICS:
            key = f"{name}_{statistic}_s"
            seen = ((client_result.get("latency") or {}).get(latency) or {}).get(statistic)
            found.append(_compared(key, seen, figures.get(key) or {}, why_not))
    return [*found, requests]


def silent_share(client_result: Mapping[str, Any]) -> float | None:
    """Share of the events that had no text. A server counts each as a token, this client counts none of them.

    None: there was no event.
    """
    latency = client_result.get("latency") or {}
    # The first content of an answer, and the end of each gap.
    contents = sum((latency.get(name) or {}).get("n") or 0 for name in ("ttft_sent_s", "itl_s"))
    silent = (client_result.get("counts") or {}).get("empty_events") or 0
    return silent / (silent + contents) if silent + contents else None


def _unlike(name: str, result: Mapping[str, Any]) -> str | None:
    """Why a figure means something else on either side in this run."""
    silent = silent_share(result) or 0.0
    if name != "e2e" and silent > _ALIKE:
        return f"{shown(silent, 'share')} of the events had no text: tokens to the server, and none to the client"
    completed = (result.get("counts") or {}).get("completed") or 0
    short = (result.get("left_out") or {}).get("tpot_one_token") or 0
    if name == "tpot" and completed and short / completed > _ALIKE:
        return f"{short} of {completed} answers had one token, whose TPOT is 0 to the server and none to the client"
    return None


def _compared(name: str, client: Any, figure: Mapping[str, Any], why_not: str | None) -> dict[str, Any]:
    what, statistic, _ = name.split("_")
    title = f"{what.upper()} {statistic}"
    server, bucket = figure.get("value"), figure.get("bucket")
    entry = {"figure": name, "client": client, "server": server, "difference": None, "bucket": bucket, "agrees": None}
    low, high, room = (server, server, _MEAN) if statistic == "mean" else (*(bucket or (None, None)), _ENDS)
    if not (is_number(client) and is_number(server) and is_number(low) and is_number(high)):
        return {**entry, "says": f"{title} cannot be compared: {_missing(client, server)}"}
    entry["difference"] = difference = client - server
    if why_not:
        return {**entry, "says": f"{title} cannot be compared: {why_not}"}
    says = f"{title}: the client measured {shown(client, 's')}, the server's histogram says {shown(server, 's')}"
    if statistic != "mean":
        says += f" (between {shown(low, 's')} and {shown(high, 's')})"
    if client < low * (1 - room):
        says += f"; the server saw {shown(-difference, 's')} more than the client: it may have served others besides"
        return {**entry, "agrees": False, "says": says}
    if client > high * (1 + room) + _WAY_S.get(what, 0.0):
        says += (
            f"; the client waited {shown(difference, 's')} longer than the server knows of: look between the two, and "
            "at the generator's self-check"
        )
        return {**entry, "agrees": False, "says": says}
    return {**entry, "agrees": True, "says": f"{says}; they agree"}


def _requests(result: Mapping[str, Any], figures: Mapping[str, Any]) -> dict[str, Any]:
    """Answers that ended in the window, on both sides; a server that finished many more has other clients."""
    seconds = (result.get("window") or {}).get("seconds")
    rate = (result.get("rates") or {}).get("completed_per_s")
    client = None if rate is None or seconds is None else rate * seconds
    server = (figures.get("requests_finished") or {}).get("value")
    entry = {
        "figure": "requests",
        "client": client,
        "server": server,
        "difference": None,
        "bucket": None,
        "agrees": None,
    }
    if client is None or not is_number(server):
        return {**entry, "says": "requests cannot be compared: one side did not count them"}
    # What lies at the very ends of the window may be counted by one side only: a scrape is not a moment.
    in_flight = [count for count in (result.get("timeline") or {}).get("in_flight") or [] if count is not None]
    slack = max([1, *in_flight]) + _ENDS * max(client, server)
    difference = client - server
    agrees = abs(difference) <= slack
    says = f"requests: {client:.0f} answers ended at the client, {server:.0f} at the server in the same window; "
    if agrees:
        says += "that is the same but for the ends of the window"
    elif difference < 0:
        says += "others used the server at the same time, or requests were given up by the client"
    else:
        says += "the server counts fewer, so these are not all figures of one server"
    return {**entry, "difference": difference, "agrees": agrees, "says": says}


def _missing(client: Any, server: Any) -> str:
    for side, value in (("client", client), ("server", server)):
        if isinstance(value, str):
            return f"the {side} says {value!r}"
        if value is None:
            return f"the {side} has no such figure"
    return "it lies above the last edge of the server's histogram"
