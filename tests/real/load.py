"""A small load on a real model: enough that each metric of an instance has something to say."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from typing import Any

# Five scrapes of the lab's Prometheus, so that a rate over a minute has samples on both ends.
LASTS_S = 30
CLIENTS = 4
# So few at a time that two cores are enough for more arrivals than the instance can serve, and for who sends them.
INSTANCE: dict[str, Any] = {
    "name": "tiny",
    "model": "/srv/models/tiny",
    "gpus": [0],
    "port": 8000,
    "args": {"max-model-len": 2048, "max-num-seqs": 4, "enforce-eager": True},
    "env": {"VLLM_CPU_KVCACHE_SPACE": 1},
    "start_budget_s": 600,
    "shm_size": "1g",
}


def some_load(url: str) -> None:
    """Ask the model at `url` for half a minute: short and long prompts, shared beginnings, and one wrong request."""
    end = time.monotonic() + LASTS_S
    with ThreadPoolExecutor(CLIENTS) as pool:
        for client in range(CLIENTS):
            pool.submit(_client, url, client, end)
    try:
        _ask(url, {"model": "nobody", "prompt": "x"})
    except urllib.error.HTTPError as error:
        error.close()


def _client(url: str, client: int, end: float) -> None:
    number = 0
    while time.monotonic() < end:
        number += 1
        prompt = "All of them begin alike. " * 40 + f"client {client}, request {number}. " * (1 + number % 5)
        _ask(url, {"model": "tiny", "prompt": prompt, "max_tokens": 16 + 16 * (number % 4), "ignore_eos": True})


def _ask(url: str, body: dict[str, object]) -> None:
    request = urllib.request.Request(
        f"{url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=300) as answer:
        answer.read()
