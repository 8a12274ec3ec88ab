"""Run `promtool test rules` over many files at once, and tell which of them failed."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from vllm_node.lab import tools

# One verdict a file, in the order of the files; the name is told by one generation of promtool only.
_VERDICT = re.compile(r"^  (SUCCESS|FAILED:)$", re.MULTILINE)
# A process judges its files one after the other, and its start costs more than a file does.
_LEAST = 8


def failures(series: tools.Series, files: Sequence[Path]) -> dict[Path, str]:
    """What promtool says about each file that failed; one process a core, for many files each."""
    processes = max(1, min(os.cpu_count() or 1, len(files) // _LEAST))
    parts = [files[first::processes] for first in range(processes)]
    with ThreadPoolExecutor(processes) as pool:
        told = [failure for found in pool.map(lambda part: _judge(series, part), parts) for failure in found.items()]
    return dict(sorted(told))


def _judge(series: tools.Series, files: Sequence[Path]) -> dict[Path, str]:
    done = subprocess.run(
        [*tools.promtool(series), "test", "rules", *map(str, files)],
        stdout=subprocess.PIPE,
        # Success and failure are told on two streams.
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
        # Each case writes a store of its own and waits for the disk; memory is ten times as fast on a busy machine.
        env={**os.environ, "TMPDIR": "/dev/shm"} if Path("/dev/shm").is_dir() else None,
    )
    verdicts = _VERDICT.split(done.stdout)[1:]
    words, texts = verdicts[::2], verdicts[1::2]
    if len(words) != len(files):
        raise AssertionError(f"promtool judged {len(words)} of {len(files)} files ({done.returncode}):\n{done.stdout[-2000:]}")
    return {path: text.strip() for path, word, text in zip(files, words, texts, strict=True) if word != "SUCCESS"}
