"""Whether the client and the server tell the same story: what one measured must lie within the other's buckets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# A server cannot know when a request was due, so it is held against the client's times from the send.
_PAIRS = {"ttft": "ttft_sent_s", "e2e": "e2e_sent_s"}
_QUANTILES = ("p50", "p95", "p99")


def agree(client_result: Mapping[str, Any], server_figures: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One entry for each quantile of TTFT and E2E, and one for the number of requests.

    client_result: the engine's `result.json`; server_figures: of the same window. Each entry has `figure`, `client`
    and `server` (seconds, a word or None), `difference` (client - server), `bucket` (the server's, in seconds),
    `agrees` (None: it cannot be told) and `says`, a sentence.
    """
    if server_figures.get("refused"):
        return []
    figures = server_figures.get("figures") or {}
    found = [
        _compared(
            f"{name}_{quantile}_s", _client(client_result, latency, quantile), figures.get(f"{name}_{quantile}_s")
        )
        for name, latency in _PAIRS.items()
        for quantile in _QUANTILES
    ]
    return [*found, _requests(client_result, figures)]


def _client(result: Mapping[str, Any], latency: str, quantile: str) -> Any:
    return ((result.get("latency") or {}).get(latency) or {}).get(quantile)


def _compared(name: str, client: Any, figure: Mapping[str, Any] | None) -> dict[str, Any]:
    server: Any = (figure or {}).get("value")
    bucket: Any = (figure or {}).get("bucket")
    entry = {"figure": name, "client": client, "server": server, "difference": None, "bucket": bucket, "agrees": None}
    numbers = [value for value in (client, server) if isinstance(value, int | float)]
    if len(numbers) < 2 or not bucket or bucket[1] is None:
        return {**entry, "says": f"{_called(name)}: cannot be compared, {_missing(client, server)}"}
    difference, width = client - server, bucket[1] - bucket[0]
    agrees = abs(difference) <= width
    says = (
        f"{_called(name)}: the client measured {_ms(client)}, the server's histogram says {_ms(server)} (between "
        f"{_ms(bucket[0])} and {_ms(bucket[1])}); "
    )
    if agrees:
        says += "they agree within the width of the bucket"
    elif difference > 0:
        says += (
            f"the client waited {_ms(difference)} longer than the server knows of: look between the two, and at the "
            "generator's self-check"
        )
    else:
        says += f"the server saw {_ms(-difference)} more than the client: it may have served others besides"
    return {**entry, "difference": difference, "agrees": agrees, "says": says}


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
    if client is None or not isinstance(server, int | float):
        return {**entry, "says": "requests: cannot be compared, one side did not count them"}
    # What lies at the very ends of the window may be counted by one side only: a scrape is not a moment.
    in_flight = [count for count in (result.get("timeline") or {}).get("in_flight") or [] if count is not None]
    slack = max([1, *in_flight]) + 0.1 * max(client, server)
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


def _called(name: str) -> str:
    what, quantile, _ = name.split("_")
    return f"{what.upper()} {quantile}"


def _missing(client: Any, server: Any) -> str:
    for side, value in (("client", client), ("server", server)):
        if isinstance(value, str):
            return f"the {side} says {value!r}"
        if value is None:
            return f"the {side} has no such figure"
    return "the bucket is not known"


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms" if abs(seconds) < 1 else f"{seconds:.2f} s"
