"""How much load this machine can make: steps of growing load against a server whose times are known.

A step counts when the generator's own checks pass and its first tokens are right. The server runs in a process of
its own; when it is late itself, the ceiling found is only a lower bound, and the result says so.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from vllm_node.load import plan as plans
from vllm_node.load.progress import tell
from vllm_node.load.run import run

TTFT_S, ITL_S = 0.05, 0.02
TOKENS = 32
STREAMS = (64, 128, 256, 512, 1024, 2048)
RATES = (100, 200, 400, 800, 1600, 3200)
# The error of the first token that a step may have, and the lateness beyond which the server is to blame.
ERROR_P95_S = 0.010
SERVER_LATE_S = 0.005


def ceiling(backend: str = "auto", seconds: float = 2.0) -> dict[str, Any]:
    """The highest step that held, for parallel streams and for arrivals a second.

    Raises:
        OSError: the server could not be started.
    """
    found: dict[str, Any] = {"backend": backend, "steps": []}
    for what, steps in (("streams", STREAMS), ("arrivals_per_s", RATES)):
        best, limited_by = None, "the last step held: the ceiling is higher"
        for step in steps:
            # One more try: something else on the machine may have come in between.
            for _ in range(2):
                seen = _step(backend, what, step, seconds)
                found["steps"].append(seen)
                tell(event="selftest", **seen)
                if seen["held"]:
                    break
            else:
                limited_by = seen["limited_by"]
                break
            best = step
        found[what] = {"held": best, "limited_by": limited_by}
    return found


def _step(backend: str, what: str, step: int, seconds: float) -> dict[str, Any]:
    tokens = TOKENS if what == "streams" else 4
    answer_s = TTFT_S + ITL_S * (tokens - 1)
    if what == "streams":
        count = round(step * max(1.0, seconds / answer_s))
        # Spread over one answer: that all begin in the same millisecond is no load that occurs.
        arrivals: dict[str, Any] = {"kind": "closed", "clients": step, "ramp_s": answer_s}
    else:
        count = round(step * seconds)
        arrivals = {"kind": "poisson", "rate": step, "duration_s": seconds}
    with tempfile.TemporaryDirectory() as folder, _server() as server:
        plan = plans.parse(
            {
                "name": f"selftest {what} {step}",
                "target": {"url": f"http://127.0.0.1:{server.port}", "model": "timed"},
                "arrivals": arrivals,
                "requests": {
                    "kind": "generated",
                    "count": count,
                    "vocabulary": [0, 30000],
                    "prompt_tokens": 64,
                    "output_tokens": tokens,
                },
                "warmup": {"requests": 64, "clients": 64},
                "connections": {"open_first": 256},
                "backend": backend,
            }
        )
        result = run(plan, Path(folder))
        late_s = server.stop()["late_p99_s"]
    return _judged(what, step, result, late_s)


def _judged(what: str, step: int, result: dict[str, Any], late_s: float) -> dict[str, Any]:
    check, first = result["selfcheck"], result["latency"]["ttft_sent_s"]
    # Below twenty samples there is no p95, and the slowest stands for it.
    slow_s = first["p95"] if isinstance(first["p95"], float) else first["max"]
    error_s = None if slow_s is None else slow_s - TTFT_S
    reasons = list(check["reasons"])
    if error_s is None:
        reasons.append("no first token came")
    elif error_s > ERROR_P95_S:
        reasons.append(f"the first token is reported {error_s * 1e3:.1f} ms late (p95)")
    if result["counts"]["completed"] < result["counts"]["offered"]:
        reasons.append("not all requests completed")
    return {
        what: step,
        "held": not reasons,
        "limited_by": None if not reasons else "the test server" if late_s > SERVER_LATE_S else "the generator",
        "reasons": reasons,
        "first_token_error_p95_s": error_s,
        "lateness_p99_s": check["lateness_s"]["p99_nearest_rank"],
        "lag_p99_s": check["lag_s"]["p99_nearest_rank"],
        "cpu_share": check["cpu_share"],
        "tokens_per_s": result["rates"]["output_tokens_per_s"],
        "server_late_p99_s": late_s,
    }


class _Process:
    """The running server."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        assert process.stdout is not None
        self.port = int(process.stdout.readline() or 0)
        if not self.port:
            raise OSError("the self-test's server did not start")

    def stop(self) -> dict[str, float]:
        """End it; how late it was."""
        said, _ = self._process.communicate()
        found: dict[str, float] = json.loads(said)
        return found


@contextmanager
def _server() -> Iterator[_Process]:
    words = [sys.executable, "-m", "vllm_node.load.timed", str(round(TTFT_S * 1e6)), str(round(ITL_S * 1e6))]
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield _Process(process)
    finally:
        process.kill()
        process.wait()
