"""Hashing a model's tree with this toolkit, against sha256sum and openssl with one process a core, and plain reads.

Both readers of the toolkit take part: that of the control host (manifests, bundles) and that of the node (`model_store`).
The files lie in the page cache, so that programs are compared and not disks. What counts is the best of several rounds,
whose order alternates, and each comes before other programs of the machine, where that may be asked for.

Exit code 1 when one of ours is slower than 0.9 of the fastest other that hashes, or takes more memory for a larger tree.
"""

# ruff: noqa: T201 - its table is for a person at a terminal

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.bench.load_generators import first_in_line

SIZE_MIB = int(os.environ.get("SIZE_MIB", "2048"))
ROUNDS = int(os.environ.get("ROUNDS", "5"))
# As models are: a few large shards, some smaller ones, and a handful of small files.
SHARES = (*(0.2,) * 3, *(0.1,) * 3, *(0.02,) * 4, *(0.001,) * 20)
RATIO_LIMIT = 0.9
MEMORY_LIMIT_MIB = 8.0

PLAIN = "plain read, a process a core"

_PEAK = """
with open("/proc/self/status") as status:
    print(next(line.split()[1] for line in status if line.startswith("VmHWM")))
"""
_CONTROL_HOST = """
import sys
from pathlib import Path
from vllm_node.bundle.hashing import hash_files
hash_files(list(Path(sys.argv[1]).iterdir()))
""" + _PEAK
_NODE = """
import os, sys
from vllm_node.models.shared import shared
reading, marks = shared("model_reading"), shared("model_mark")
wanted = dict.fromkeys(os.listdir(sys.argv[1]), "")
reading.read_all(sys.argv[1], wanted, marks.Mark(sys.argv[1] + ".mark"), 0, lambda **_: None)
""" + _PEAK
_EACH = ("xargs", "-0", "-n", "1", "-P", str(len(os.sched_getaffinity(0))))


@dataclass(frozen=True)
class Run:
    """One run of one program: seconds, and the most memory that it had at a time; others are not asked for theirs."""

    took_s: float
    memory_mib: float = 0.0


def contenders(folder: Path) -> dict[str, tuple[list[str], bytes]]:
    """Name → command line and its input."""
    largest_first = sorted(folder.iterdir(), key=lambda path: -path.stat().st_size)
    names = b"".join(os.fsencode(path) + b"\0" for path in largest_first)
    found = {
        "vllm-node, control host": ([sys.executable, "-c", _CONTROL_HOST, str(folder)], b""),
        "vllm-node, node": ([sys.executable, "-c", _NODE, str(folder)], b""),
        "sha256sum, a process a core": ([*_EACH, "sha256sum"], names),
        "openssl, a process a core": ([*_EACH, "openssl", "dgst", "-sha256"], names),
        PLAIN: ([*_EACH, "sh", "-c", 'exec dd bs=1M of=/dev/null status=none if="$0"'], names),
    }
    return {name: one for name, one in found.items() if "openssl" not in one[0] or shutil.which("openssl")}


def once(argv: list[str], given: bytes) -> Run:
    """Run a program to its end."""
    with tempfile.TemporaryFile() as names:
        names.write(given)
        names.seek(0)
        begun = time.monotonic()
        done = subprocess.run(argv, stdin=names, stdout=subprocess.PIPE, check=True)
        took_s = time.monotonic() - begun
    return Run(took_s, int(done.stdout) / 1024 if argv[0] == sys.executable else 0.0)


@contextmanager
def tree(size_mib: int) -> Iterator[Path]:
    """A folder with that much of a model in it."""
    with tempfile.TemporaryDirectory(prefix="hashing-", dir=os.environ.get("BENCH_DIR")) as name:
        folder = Path(name) / "model"
        folder.mkdir()
        for number, share in enumerate(SHARES):
            with (folder / f"{number:02}.safetensors").open("wb") as stream:
                for _ in range(max(1, round(size_mib * share))):
                    stream.write(os.urandom(1 << 20))
        yield folder


def measured(size_mib: int, rounds: int) -> dict[str, Run]:
    """The fastest run of each contender, and the most memory that it had in any."""
    best: dict[str, Run] = {}
    with tree(size_mib) as folder:
        programs = list(contenders(folder).items())
        for number in range(rounds):
            for name, (argv, given) in programs if number % 2 == 0 else reversed(programs):
                run, known = once(argv, given), best.get(name, Run(float("inf")))
                best[name] = Run(min(run.took_s, known.took_s), max(run.memory_mib, known.memory_mib))
    return best


def main() -> int:
    """Run the comparison and print its table."""
    with first_in_line():
        small, large = measured(SIZE_MIB // 8, 1), measured(SIZE_MIB, ROUNDS)
    ours = [name for name in large if name.startswith("vllm-node")]
    hashing = min(run.took_s for name, run in large.items() if name not in ours and name != PLAIN)
    print(f"{'program':<30} {'s':>7} {'MiB/s':>8} {'of the best':>12} {'memory MiB':>11} {'for an eighth':>14}")
    for name, run in large.items():
        memory = f"{run.memory_mib:>11.1f} {small[name].memory_mib:>14.1f}" if name in ours else ""
        print(f"{name:<30} {run.took_s:>7.2f} {SIZE_MIB / run.took_s:>8.0f} {hashing / run.took_s:>12.2f} {memory}".rstrip())
    slowest = min(hashing / large[name].took_s for name in ours)
    growth = max(large[name].memory_mib - small[name].memory_mib for name in ours)
    print(f"slowest of ours: {slowest:.2f} of the best other that hashes (at least {RATIO_LIMIT})")
    print(f"memory for eight times as much: {growth:+.1f} MiB (at most {MEMORY_LIMIT_MIB:.0f})")
    return 0 if slowest >= RATIO_LIMIT and growth <= MEMORY_LIMIT_MIB else 1


if __name__ == "__main__":
    sys.exit(main())
