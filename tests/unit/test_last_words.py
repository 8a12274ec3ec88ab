"""Every cause that is known is found in a line that shows it, and in none that only looks like it."""

from __future__ import annotations

import re

import pytest

from vllm_node.last_words import _WORDS, likely_cause

DEATHS = [
    ("Error: setting up CDI devices: unresolvable CDI devices nvidia.com/gpu=7", "no such GPU in the CDI.*gpu=7"),
    (
        "RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 802: system not yet initialized",
        "NVSwitch fabric",
    ),
    ("cuInit failed with error 802", "NVSwitch fabric"),
    ("Error 803: system has unsupported display driver / cuda driver combination", "libcuda of the image"),
    ("CUDA error: 803", "libcuda of the image"),
    ("Error 804: forward compatibility was attempted on non supported HW", "newer than this driver"),
    ("CUDA driver error 804", "newer than this driver"),
    ("Failed to initialize NVML: Driver/library version mismatch", "reboot the node"),
    ("Failed to initialize NVML: Unknown Error", "lost its GPUs"),
    ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", "not enough free GPU memory"),
    (
        "ValueError: Free memory on device cuda:0 (20.1/79.1 GiB) on startup is less than desired GPU memory "
        "utilization (0.9, 71.2 GiB).",
        "not enough free GPU memory",
    ),
    ("ValueError: No available memory for the cache blocks.", "KV cache does not fit"),
    ("max seq len (131072) is larger than the maximum number of tokens that can be stored", "KV cache does not fit"),
    (
        "16.00 GiB KV cache is needed, which is larger than the available KV cache memory (3.2 GiB)",
        "KV cache does not fit",
    ),
    ("NCCL WARN Error while creating shared memory segment /dev/shm/nccl-x (size 9637888)", "raise shm_size"),
    ("OSError: [Errno 28] No space left on device: '/dev/shm/psm_1'", "raise shm_size"),
    ("Fatal Python error: Bus error", "raise shm_size"),
    ("OpenBLAS blas_thread_init: pthread_create failed for thread 63 of 64", "limit of processes"),
    ("RuntimeError: can't start new thread", "limit of processes"),
    ("OSError: [Errno 98] Address already in use", "port is taken"),
    ("[error] listen tcp 127.0.0.1:9400: bind: address already in use", "port is taken"),
    ("The repository /models/x contains custom code which must be executed to load the model.", "code of its own"),
    ("consider setting `trust_remote_code=True` in LLM or using the `--trust-remote-code` flag", "code of its own"),
    ("Please pass the argument `trust_remote_code=True` to allow it.", "code of its own"),
    ("OSError: Can't load tokenizer for '/models/x'.", "tokenizer files are missing"),
    ("ValueError: Couldn't instantiate the backend tokenizer from one of:", "tokenizer files are missing"),
    ("FileNotFoundError: /models/x/tokenizer.model not found", "tokenizer files are missing"),
    ("vllm: error: unrecognized arguments: --max-modle-len 5", r"does not know that flag.*\(--max-modle-len 5\)"),
    (
        'Error: lookup init binary: exec: "catatonit": executable file not found in $PATH',
        "install the package catatonit",
    ),
    ("Error: registry:5000/vllm@sha256:00: image not known", "run the playbook again"),
    ("Error: no such image", "run the playbook again"),
    ("PermissionError: [Errno 13] Permission denied: '/var/cache/vllm'", "cannot be read or written"),
    ("Failed to initialize NVML: Insufficient Permissions", "cannot be read or written"),
]

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
    "",
]


@pytest.mark.parametrize(("line", "cause"), DEATHS)
def test_a_known_death_is_explained(line: str, cause: str) -> None:
    log = f"INFO: Loading weights took 3.2 s\n{line}\nINFO: shutting down"
    found = likely_cause(log)
    assert found is not None
    assert re.search(cause, found)


@pytest.mark.parametrize("line", LOOK_ALIKES)
def test_an_innocent_line_is_not_blamed(line: str) -> None:
    assert likely_cause(line) is None


def test_every_cause_has_a_line_that_shows_it() -> None:
    explained = [likely_cause(line) or "" for line, _ in DEATHS]
    silent = [meaning for _, meaning in _WORDS if not any(text.startswith(meaning) for text in explained)]
    assert not silent


def test_the_detail_comes_from_its_own_line_only() -> None:
    found = likely_cause("unrecognized arguments: --a 1\nusage: vllm serve")
    assert found is not None
    assert found.endswith("(--a 1)")
