"""What the gateway costs: streams through it against the same streams without it, by turns, at 64 at a time.

The gateway is the lab image's nginx with the role's configuration, in front of a server that answers at known times. It
asks for a key and speaks TLS; without it the same client speaks plainly to the server. Prompts are of the length of a
chat, and a token comes every 5 ms in each stream: as the server keeps to its times, fewer tokens a second mean that the
gateway did not keep up. What counts is the median of several rounds.

Exit code 1 when the gateway takes more than 2 % of the tokens a second, or brings the first token more than 3 ms later.
"""

# ruff: noqa: T201 - its table is for a person at a terminal

from __future__ import annotations

import contextlib
import io
import os
import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.bench.load_generators import first_in_line
from tests.gateway.nginx import NAME, Gateway, gateway
from tests.load.runs import measure
from tests.load.server import TimedServer, serving
from vllm_node.gateway import keys

STREAMS = 64
ROUNDS = int(os.environ.get("ROUNDS", "5"))
TTFT_US, ITL_US, TOKENS, PROMPT_TOKENS = 50_000, 5_000, 128, 1000
RATIO_LIMIT, TTFT_LIMIT_MS = 1.02, 3.0
_TRIES = 3


@dataclass(frozen=True)
class Figures:
    """Of one run: tokens a second, and milliseconds to the first token."""

    tokens_s: float
    ttft_ms: float
    ttft_p99_ms: float


def figures(target: dict[str, Any], folder: Path) -> Figures:
    """One run that its own checks find valid; other programs on the machine may void some.

    Raises:
        RuntimeError: none was.
    """
    document = {
        "target": {"model": "tiny", **target},
        "arrivals": {"kind": "closed", "clients": STREAMS, "ramp_s": 0.5},
        "requests": {
            "kind": "generated",
            "count": 4 * STREAMS,
            "vocabulary": [10, 1000],
            "prompt_tokens": PROMPT_TOKENS,
            "output_tokens": TOKENS,
        },
        "warmup": {"requests": STREAMS, "clients": STREAMS},
    }
    reasons = "no run"
    for number in range(_TRIES):
        # The engine tells its progress there.
        with contextlib.redirect_stderr(io.StringIO()):
            result, records = measure(document, folder / str(number))
        good = [one for one in records if one.kind == "ok" and one.scored]
        if not result["selfcheck"]["valid"] or len(good) != 4 * STREAMS:
            reasons = "; ".join(result["selfcheck"]["reasons"]) or f"{len(good)} of {4 * STREAMS} answers came whole"
            continue
        first = sorted(one.contents_us[0] / 1e3 for one in good)
        took_s = (max(one.end for one in good) - min(one.sent for one in good)) / 1e9
        return Figures(TOKENS * len(good) / took_s, statistics.median(first), first[int(len(first) * 0.99)])
    raise RuntimeError(f"{_TRIES} runs were void, the last: {reasons}")


def compare(server: TimedServer, through: Gateway, key: Path, folder: Path) -> tuple[list[Figures], list[Figures]]:
    """Figures of each round, direct and through the gateway; which of them comes first alternates."""
    ways = {
        "direct": {"url": server.url},
        "gateway": {
            "url": f"https://127.0.0.1:{through.port}",
            "server_name": NAME,
            "ca_file": str(through.ca),
            "api_key_file": str(key),
        },
    }
    found: dict[str, list[Figures]] = {way: [] for way in ways}
    for number in range(ROUNDS):
        for way in list(ways)[:: 1 if number % 2 else -1]:
            found[way].append(figures(ways[way], folder / f"{way}-{number}"))
    return found["direct"], found["gateway"]


def main() -> int:
    """Measure, print the table, judge."""
    key = keys.fresh()
    with tempfile.TemporaryDirectory() as name, first_in_line():
        folder = Path(name)
        (folder / "key").write_text(key)
        with (
            serving(folder, "--ttft-us", str(TTFT_US), "--itl-us", str(ITL_US)) as server,
            gateway(
                folder, [{"name": "tiny", "port": server.port}], gateway_clients=[{"name": "bench", "key": key}]
            ) as through,
        ):
            direct, behind = compare(server, through, folder / "key", folder)
    print(f"{STREAMS} streams at a time, {TOKENS} tokens each, {ROUNDS} rounds by turns; medians")
    print(f"{'way':<10}{'tokens/s':>10}{'first token, ms':>18}{'its p99':>10}")
    medians = []
    for way, rounds in (("direct", direct), ("gateway", behind)):
        one = Figures(*(statistics.median(getattr(each, name) for each in rounds) for name in Figures.__annotations__))
        medians.append(one)
        print(f"{way:<10}{one.tokens_s:>10.1f}{one.ttft_ms:>18.2f}{one.ttft_p99_ms:>10.2f}")
    ratio, later = medians[0].tokens_s / medians[1].tokens_s, medians[1].ttft_ms - medians[0].ttft_ms
    print(f"direct / gateway tokens a second: {ratio:.4f} (at most {RATIO_LIMIT})")
    print(f"first token later by {later:.2f} ms (at most {TTFT_LIMIT_MS})")
    return 0 if ratio <= RATIO_LIMIT and later <= TTFT_LIMIT_MS else 1


if __name__ == "__main__":
    sys.exit(main())
