"""Every cause that is known is found in a log that shows it, the first cause wins, and a normal start shows none."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import yaml

from vllm_node.last_words import explain, likely_cause
from vllm_node.last_words.cause import causes
from vllm_node.last_words.table import words

DATA = Path(__file__).with_name("data")
SAMPLES: dict[str, list[str]] = yaml.safe_load((DATA / "last_words.yml").read_text())
NORMAL = (DATA / "vllm_start.log").read_text()
# What vLLM says after nearly every death.
AFTERMATH = """\
(EngineCore pid=9) ERROR 01-02 03:04:05 [core.py:1510] EngineCore failed to start.
(APIServer pid=2) RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}
vllm-chat.service: Main process exited, code=exited, status=1/FAILURE
vllm-chat.service: Failed with result 'exit-code'.
"""

LOOK_ALIKES = [
    "Graph capturing finished in 12 secs, took 0.802 GiB",
    "CUDA graph pool memory: 0.803 GiB",
    "Capturing CUDA graphs (decode): 804/1000",
    "Initializing a V1 LLM engine with config: model='/models/x', trust_remote_code=False, dtype=torch.bfloat16",
    "non-default args: {'model': '/models/x', 'trust_remote_code': True}",
    "Maximum concurrency for 2,048 tokens per request: 52.00x",
    "Available KV cache memory: 12.34 GiB",
    "tokenizer_mode='auto'; chat template not found, using the default",
    "Using cache directory /var/cache/vllm for the compilation cache",
    '127.0.0.1:40000 - "POST /v1/completions HTTP/1.1" 200',
    "(Worker pid=1) WARNING 01-02 03:04:05 [x.py:1] CUDA out of memory would follow from a larger batch",
    "(Worker_TP0 pid=1) (Worker pid=1) INFO 01-02 03:04:05 [x.py:1] Permission denied for the usage file, going on",
    'time=2026-01-02T03:04:05Z level=WARN msg="a block is corrupt, opening storage failed for it; repaired"',
    '2026/01/02 03:04:05 [notice] 1#1: signal process: Address already in use is no news',
    "",
]  # fmt: skip


def named(log: str) -> str | None:
    found = explain(log)
    return found.word.id if found else None


@pytest.mark.parametrize(
    ("name", "log"), [(name, log) for name, logs in SAMPLES.items() for log in logs], ids=lambda value: str(value)[:40]
)
def test_a_known_death_is_explained_whatever_follows_from_it(name: str, log: str) -> None:
    found = explain(f"{log.strip()}\n{AFTERMATH}" if name not in ("dcgm-bare", "killed", "segfault") else log)
    assert found is not None
    assert found.word.id == name
    assert found.line in log


def test_every_cause_has_a_sample_and_every_sample_a_cause() -> None:
    assert Counter(word.id for word in words()) == Counter(list(SAMPLES))


@pytest.mark.parametrize("word", words(), ids=lambda word: word.id)
def test_a_cause_comes_with_a_next_step(word: object) -> None:
    said = {name: getattr(word, name) for name in ("means", "cure")}
    assert all(said.values())
    assert not [text for text in said.values() if text.endswith((".", ";")) or "  " in text]


@pytest.mark.parametrize("line", LOOK_ALIKES)
def test_an_innocent_line_is_not_blamed(line: str) -> None:
    assert explain(line) is None


def test_a_normal_start_matches_nothing() -> None:
    assert explain(NORMAL) is None


@pytest.mark.parametrize("line", NORMAL.splitlines())
def test_no_line_of_a_normal_start_matches_by_itself(line: str) -> None:
    assert explain(line) is None


def test_the_first_cause_wins_over_its_consequences() -> None:
    log = "\n".join([*SAMPLES["safetensors-header"], *SAMPLES["port"], AFTERMATH])
    assert named(log) == "safetensors-header"


def test_the_engine_that_refers_to_a_cause_above_is_only_named_without_one() -> None:
    found = explain(AFTERMATH)
    assert found is not None
    assert found.word.id == "engine-init"
    assert "first traceback" in found.text


def test_an_exact_cause_further_down_wins_over_a_general_one() -> None:
    log = "\n".join([*SAMPLES["nccl-system"], *SAMPLES["nvls"], AFTERMATH])
    assert named(log) == "nvls"


def test_the_latest_start_that_shows_a_cause_counts() -> None:
    again = "vllm-chat.service: Scheduled restart job, restart counter is at {}.\n"
    log = "".join(
        [SAMPLES["cuda-802"][0], "\n", AFTERMATH, again.format(1), SAMPLES["heads"][0], "\n", AFTERMATH, again.format(2)]
    )
    assert named(log) == "heads"
    found = [cause.word.id for cause in causes(log + "(APIServer pid=2) just begun\n") if cause]
    assert found == ["heads", "cuda-802"]


def test_a_bar_that_is_redrawn_in_place_hides_nothing() -> None:
    log = "Capturing CUDA graphs:  1/9\rCapturing CUDA graphs:  2/9\r\x1b[31mRuntimeError: can't start new thread\x1b[0m"
    found = explain(log)
    assert found is not None
    assert found.line == "RuntimeError: can't start new thread"


@pytest.mark.parametrize(
    ("name", "detail"),
    [
        ("unknown-flag", "--max-modle-len 5"),
        ("cdi-unresolvable", "nvidia.com/gpu=7"),
        ("kv-too-small", "26208"),
        ("heads", "32"),
        ("max-len", "4096"),
        ("architecture", "['NewForCausalLM']"),
        ("secret-missing", "vllm-chat-key"),
        ("read-only", "/root/.cache"),
        ("no-user", "1000"),
        ("dcgm-field", "unknown ExporterCounter field 'DCGM_FI_DEV_NOPE"),
        ("nginx-certificate", "/run/secrets/tls.pem"),
        ("prometheus-lock", "resource temporarily unavailable"),
    ],
)
def test_the_detail_of_its_line_is_told(name: str, detail: str) -> None:
    found = explain(SAMPLES[name][0])
    assert found is not None
    assert found.detail.lstrip("'") == detail
    assert likely_cause(SAMPLES[name][0]) == f"{found.word.means} ({found.detail}); {found.word.cure}"
