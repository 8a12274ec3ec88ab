"""Run a program of the lab's host and turn its failure into a readable error."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from vllm_node.lab.errors import LabError


def run(
    argv: Sequence[str | Path],
    *,
    env: Mapping[str, str] | None = None,
    timeout_s: float = 1800,
    stdin: str | None = None,
) -> str:
    """Run `argv` to its end and return its stdout.

    Raises:
        LabError: the program is missing, ran out of time, or did not exit with 0.
    """
    words = [str(word) for word in argv]
    try:
        done = subprocess.run(
            words, env=env, input=stdin, capture_output=True, text=True, timeout=timeout_s, check=False
        )
    except FileNotFoundError as error:
        raise LabError(f"{words[0]} is not installed; run `vllm-node lab check --install`") from error
    except subprocess.TimeoutExpired as error:
        raise LabError(f"{' '.join(words[:3])} … did not end within {timeout_s:.0f} s") from error
    if done.returncode != 0:
        last = "\n".join((done.stderr or done.stdout).strip().splitlines()[-15:])
        raise LabError(f"{' '.join(words[:4])} … exited with {done.returncode}:\n{last}")
    return done.stdout
