"""How far a start of vLLM has come is read from what it writes, line by line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.unit.role_code import shared_code

NORMAL = (Path(__file__).with_name("data") / "vllm_start.log").read_text()


def phase(log: str) -> Any:
    return shared_code("vllm_phases").phase(log)


def test_a_normal_start_goes_through_all_phases_in_their_order() -> None:
    found = [told for line in NORMAL.splitlines() if (told := phase(line))]
    phases = ["starting", "engine", "workers", "weights", "loaded", "compile", "memory", "graphs", "server"]
    assert list(dict.fromkeys(told["phase"] for told in found)) == phases
    order = [phases.index(told["phase"]) for told in found]
    assert order == sorted(order)


@pytest.mark.parametrize(
    ("last_line", "text", "left_s"),
    [
        ("api_utils.py", "starting vLLM 0.32.0", None),
        ("0% Completed", "loading shard 1 of 8", None),
        ("38% Completed", "loading shard 4 of 8", 50),
        ("100% Completed", "all 8 shards loaded", None),
        ("Model loading took", "weights loaded, 65.7 GiB in 81 s", None),
        ("Compiling a graph", "compiling", None),
        ("torch.compile took", "compiled in 49 s", None),
        ("GPU KV cache size", "KV cache of 323,440 tokens", None),
        ("39%|", "capturing graphs, 20 of 51", 6),
        ("Graph capturing finished", "graphs captured in 19 s", None),
        ("init engine", "engine is up after 79 s", None),
        ("Starting vLLM server", "API server is starting", None),
    ],
)
def test_the_latest_line_that_tells_counts(last_line: str, text: str, left_s: int | None) -> None:
    lines = NORMAL.splitlines()
    end = next(number for number, line in enumerate(lines) if last_line in line)
    told = phase("\n".join([*lines[: end + 1], "(Worker_TP1 pid=201) INFO 01-02 03:04:05 [x.py:1] something else"]))
    assert (told["text"], told["left_s"]) == (text, left_s)


@pytest.mark.parametrize("log", ["", "NCCL version 2.26.2+cuda12.2", "Loading the site's files: 3 of 8", "[00:30<00:50]"])
def test_other_lines_tell_nothing(log: str) -> None:
    assert phase(log) is None


def test_a_bar_that_is_redrawn_in_place_is_read_at_its_end() -> None:
    bar = "Capturing CUDA graphs (decode, FULL): {:3}%|#| {}/4 [00:01<1:00:02,  1.00it/s]"
    told = phase("\r".join(["", bar.format(0, 0), bar.format(25, 1), bar.format(50, 2)]))
    assert told == {"phase": "graphs", "text": "capturing graphs, 2 of 4", "done": 2, "total": 4, "left_s": 3602}


def test_colours_hide_nothing() -> None:
    assert phase("\x1b[0;36m(EngineCore pid=9)\x1b[0;0m Initializing a \x1b[32mV1\x1b[0m LLM engine")["phase"] == "engine"
