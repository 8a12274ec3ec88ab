"""First-token error and CPU of load generators at 128, 512 and 1024 parallel streams, in one run.

Each measures the timed server in a closed loop: 64 tokens a stream, the first after 50 ms, 20 ms apart. The error is
the mean time to first token that it reports, less the server's own. CPU is user and system time of the whole
command for each 1000 tokens; beside it stands the same less what the command takes for a single request, which leaves
out imports and other beginnings. A run in which the server was late, or whose generator says that it was held up, is made again.

Exit code 1 when a bound is broken: 2 ms up to 512 streams, 5 ms at 1024, and a quarter of the CPU of
`vllm bench serve`, which takes part where the lab's vLLM is in the cache.
"""

# ruff: noqa: T201 - its table is for a person at a terminal

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.load.server import Stream, TimedServer, serving
from vllm_node.paths import cache_dir

STREAMS = (128, 512, 1024)
TOKENS, TTFT_S, ITL_S = 64, 0.05, 0.02
# Each client asks this often.
ROUNDS = 3
TRIES = int(os.environ.get("TRIES", "4"))
ERROR_MS = {128: 2.0, 512: 2.0, 1024: 5.0}
CPU_SHARE = 0.25


@dataclass(frozen=True)
class Seen:
    """One run. `void` says why it does not count."""

    reported_ms: float
    truth_ms: float
    cpu_s: float
    tokens: int
    void: str | None = None

    @property
    def error_ms(self) -> float:
        return self.reported_ms - self.truth_ms


# A generator runs (requests, streams, folder) against a server: the mean first token in ms, and why it is void.
Generator = Callable[[TimedServer, int, int, Path], tuple[float, str | None]]


def ours(backend: str) -> Generator:
    """This project's engine, on one of its back ends."""

    def run(server: TimedServer, requests: int, streams: int, folder: Path) -> tuple[float, str | None]:
        plan = {
            "target": {"url": server.url, "model": "tiny"},
            "arrivals": {"kind": "closed", "clients": streams},
            "requests": {
                "kind": "generated", "count": requests, "vocabulary": [10, 1000],
                "prompt_tokens": 64, "output_tokens": TOKENS,
            },
            "backend": backend,
        }
        (folder / "plan.json").write_text(json.dumps(plan))
        words = [sys.executable, "-m", "vllm_node.load", "run", "--plan", str(folder / "plan.json"), "--out", str(folder)]
        subprocess.run(words, stderr=subprocess.DEVNULL, check=False)
        result = json.loads((folder / "result.json").read_text())
        reasons = result["selfcheck"]["reasons"]
        return result["latency"]["ttft_sent_s"]["mean"] * 1e3, "; ".join(reasons) or None

    return run


def vllm_bench(site_packages: Path, tokenizer: Path, python: str = "python3.11") -> Generator:
    """`vllm bench serve` out of a folder of site-packages."""
    code = "from vllm.entrypoints.cli.main import main; main()"

    def run(server: TimedServer, requests: int, streams: int, folder: Path) -> tuple[float, str | None]:
        words = [
            *(python, "-c", code, "bench", "serve", "--backend", "openai", "--base-url", server.url),
            *("--model", "tiny", "--tokenizer", str(tokenizer), "--dataset-name", "random", "--random-input-len", "64"),
            *("--random-output-len", str(TOKENS), "--num-prompts", str(requests), "--max-concurrency", str(streams)),
            *("--ignore-eos", "--disable-tqdm", "--ready-check-timeout-sec", "0"),
            *("--save-result", "--result-dir", str(folder), "--result-filename", "result.json"),
        ]
        environment = {**os.environ, "PYTHONPATH": str(site_packages), "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
        done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"vllm bench serve failed:\n{done.stderr[-3000:]}")
        return float(json.loads((folder / "result.json").read_text())["mean_ttft_ms"]), None

    return run


def peers() -> dict[str, Generator]:
    """Others that can run here."""
    packages = sorted(cache_dir().glob("vllm-*/site-packages"))
    models = sorted(cache_dir().glob("model-*/tiny"))
    return {"vllm bench serve": vllm_bench(packages[-1], models[-1])} if packages and models else {}


@contextmanager
def first_in_line() -> Iterator[None]:
    """All that is started here comes before other programs of the machine, where that may be asked for."""
    with suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    yield
    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


def once(generator: Generator, streams: int, requests: int) -> Seen:
    """One run on a server of its own."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        timing = ("--ttft-us", str(round(TTFT_S * 1e6)), "--itl-us", str(round(ITL_S * 1e6)))
        with serving(folder, *timing) as server:
            before = _cpu_s()
            reported_ms, void = generator(server, requests, streams, folder)
            cpu_s = _cpu_s() - before
            truth = [one for one in server.truth() if one.outcome == "done"]
    if len(truth) < requests:
        void = f"{requests - len(truth)} streams are missing"
    elif _late_p99_s(truth) > 0.002:
        void = void or f"the server was late by {_late_p99_s(truth) * 1e3:.1f} ms (p99)"
    truth_ms = statistics.fmean(one.ttft_s for one in truth) * 1e3
    return Seen(reported_ms, truth_ms, cpu_s, sum(one.tokens for one in truth), void)


def measured(generator: Generator, streams: int) -> Seen:
    """A run that counts, or the last that does not."""
    for _ in range(TRIES):
        seen = once(generator, streams, ROUNDS * streams)
        if seen.void is None:
            break
    return seen


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _late_p99_s(streams: list[Stream]) -> float:
    late = sorted(one for stream in streams for one in stream.late_s(TTFT_S, ITL_S))
    return late[int(0.99 * (len(late) - 1))]


def main() -> int:
    """Print the table; 1 when a bound is broken."""
    generators = {"ours, httptools": ours("httptools"), "ours, stdlib": ours("stdlib"), **peers()}
    if len(generators) == 2:
        print("vllm bench serve takes no part: the lab's vLLM is not in the cache (vllm-node lab up makes it)")
    print(f"closed loop, {TOKENS} tokens a stream, {ROUNDS} requests a stream")
    print(f"{'generator':<20} {'streams':>7} {'first token, ms':>15} {'truth, ms':>10} {'error, ms':>10} {'CPU ms / 1000 tokens':>21} {'without start':>14}")
    cpu: dict[tuple[str, int], float] = {}
    broken = []
    with first_in_line():
        for name, generator in generators.items():
            idle_s = once(generator, 1, 1).cpu_s
            for streams in STREAMS:
                seen = measured(generator, streams)
                cpu[name, streams] = seen.cpu_s * 1e6 / seen.tokens
                net = (seen.cpu_s - idle_s) * 1e6 / seen.tokens
                print(
                    f"{name:<20} {streams:>7} {seen.reported_ms:>15.2f} {seen.truth_ms:>10.2f} {seen.error_ms:>10.2f} "
                    f"{cpu[name, streams]:>21.2f} {net:>14.2f}  {'void: ' + seen.void if seen.void else ''}",
                    flush=True,
                )
                # The better back end is the one that runs on a node; the other is for where it is missing.
                if name == "ours, httptools" and (seen.void or seen.error_ms > ERROR_MS[streams]):
                    broken.append(f"{name}, {streams} streams: {seen.void or f'error {seen.error_ms:.2f} ms'}")
    for streams in STREAMS:
        other = cpu.get(("vllm bench serve", streams))
        if other and cpu["ours, httptools", streams] > CPU_SHARE * other:
            broken.append(f"{streams} streams: CPU {cpu['ours, httptools', streams] / other:.0%} of vllm bench serve's")
    for one in broken:
        print(f"bound broken: {one}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
