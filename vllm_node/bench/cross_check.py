"""Our figures beside those of `vllm bench serve`: two clients, the same requests at a light load, one server.

The peer is right where it has time: below 400 requests a second and 64 streams. So the comparison has a stage of its
own, and the instance's own load is none of its business. Runs of both alternate and begin and end with ours: a server
that drifts meanwhile differs from itself, and then nothing is said about the clients.
"""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vllm_node.bench.cross_figures import PEER, judged
from vllm_node.bench.facts import Facts, WorkloadError
from vllm_node.bench.generator import StageError

# Beyond these its own event loop is late, and its figures are of itself.
MOST_PER_S, MOST_STREAMS = 400.0, 64
# Where the module `peer_run` puts the peer's files and the model.
FOLDER, MODEL = "/peer", "/model"
_TRACE, _RESULT = "trace.jsonl", "result.json"
# What a run may take beside its own time: imports of the peer, last answers.
_MARGIN_S = 300
_LEAST_REQUESTS, _MOST_REQUESTS, _RUN_S = 40, 100, 25.0
# Runs of both by turns; where ours differ from each other, it was the server.
ORDER = ("ours", PEER, "ours", PEER, "ours")
# The number that the prompts of the first run are made from; those of the benchmark itself are counted from 1.
_FIRST = 1_000_001
# As each request of ours has it: a token that ends a text would have no text itself.
_PEER_SAYS = {"skip_special_tokens": False}

Ask = Callable[..., dict[str, Any]]
"""Runs a module on the node by name with arguments, and gives its answer."""
Ours = Callable[[Mapping[str, Any], str], Mapping[str, Any]]
"""Runs a plan of the engine on the node under a name for people, and gives its result."""


@dataclass(frozen=True)
class Load:
    """What both clients send in each run: `requests` one after the other, `rate_per_s` apart, all of one length.

    Raises:
        ValueError: that is no light load.
    """

    rate_per_s: float = 4.0
    requests: int = _MOST_REQUESTS
    prompt_tokens: int = 256
    output_tokens: int = 32

    def __post_init__(self) -> None:
        """A peer that is late itself is no measure."""
        if not 0 < self.rate_per_s < MOST_PER_S:
            raise ValueError(f"{self.rate_per_s:g} requests/s: {PEER} is right above 0 and below {MOST_PER_S:g} only")
        if self.requests < 2 or self.prompt_tokens < 1 or self.output_tokens < 2:
            raise ValueError("a comparison needs two requests, a prompt, and answers of two tokens or more")

    @classmethod
    def light(cls, rates: Sequence[float], max_model_len: int) -> Load:
        """One that an instance bears easily: no faster than the slowest rate that it is measured at."""
        rate = max(1.0, min([4.0, *rates]))
        requests = max(_LEAST_REQUESTS, min(_MOST_REQUESTS, round(rate * _RUN_S)))
        output = max(2, min(32, max_model_len // 4))
        return cls(rate, requests, max(1, min(256, max_model_len - output)), output)

    @property
    def seconds(self) -> float:
        """From the first arrival to the end of the last one's interval."""
        return self.requests / self.rate_per_s

    def document(self) -> dict[str, Any]:
        """As it stands in a run document."""
        return {
            "rate_per_s": self.rate_per_s,
            "requests": self.requests,
            "prompt_tokens": self.prompt_tokens,
            "output_tokens": self.output_tokens,
            "arrivals": "constant",
            "most_streams": MOST_STREAMS,
        }


def plan(load: Load, *, url: str, model: str, facts: Facts, seed: int, repeat: int) -> dict[str, Any]:
    """Our side: a plan for the engine that sends what the peer sends, at the same times.

    Raises:
        WorkloadError: the model has too few token ids to make prompts from.
    """
    return {
        "name": f"cross-check, run {repeat}",
        "target": {"url": url, "model": model},
        "api": "completions",
        "arrivals": {"kind": "constant", "rate": load.rate_per_s, "duration_s": load.seconds},
        "requests": {
            "kind": "generated",
            "vocabulary": list(facts.vocabulary()),
            "prompt_tokens": load.prompt_tokens,
            "output_tokens": load.output_tokens,
        },
        # What the peer's requests say besides; a model's own generation config might say otherwise.
        "parameters": {"repetition_penalty": 1.0},
        "seed": seed,
        "repeat": repeat,
        # The peer warms up with a prompt that it then measures, out of the prefix cache; so neither does.
        "warmup": {"requests": 0},
        "limits": {"in_flight": MOST_STREAMS, "errors": load.requests},
    }


def words(load: Load, *, url: str, model: str, folder: str = FOLDER, tokenizer: str = MODEL) -> list[str]:
    """The peer's side: words after `vllm bench serve`; `trace` in `folder` holds its arrivals.

    Its data set `timed_trace` sends token ids of a chosen length at chosen times; `random` sends text, whose length
    the server finds out. On /v1/completions its first token is one: a chat begins with an empty event, which it counts.
    """
    return [
        *("--backend", "openai", "--base-url", url, "--endpoint", "/v1/completions"),
        *("--model", model, "--tokenizer", tokenizer),
        *("--dataset-name", "timed_trace", "--dataset-path", f"{folder}/{_TRACE}"),
        *("--timed-trace-chunk-hash-size", str(load.prompt_tokens), "--num-prompts", str(load.requests)),
        *("--max-concurrency", str(MOST_STREAMS), "--ignore-eos", "--temperature", "0"),
        *("--extra-body", json.dumps(_PEER_SAYS), "--ready-check-timeout-sec", "0", "--disable-tqdm"),
        *("--percentile-metrics", "ttft,tpot,itl,e2el", "--metric-percentiles", "50,95"),
        *("--save-result", "--save-detailed", "--result-dir", folder, "--result-filename", _RESULT),
    ]


def trace(load: Load) -> dict[str, str]:
    """The peer's arrivals as a file by its name: the same schedule as ours. Each prompt has an id of its own."""
    lines = (
        {
            "timestamp": number / load.rate_per_s,
            "input_length": load.prompt_tokens,
            "output_length": load.output_tokens,
            "hash_ids": [number],
        }
        for number in range(load.requests)
    )
    return {_TRACE: "".join(json.dumps(line) + "\n" for line in lines)}


def environment(seed: int, repeat: int) -> dict[str, str]:
    """What makes the peer's prompts the same again for the same seed, and others for each run.

    It draws the tokens of a prompt from Python's hash of the prompt's id.
    """
    return {"PYTHONHASHSEED": str((seed * 1000 + repeat) % 2**32)}


def cross_check(
    ask: Ask,
    ours: Ours,
    show: Callable[[str], None],
    *,
    url: str,
    model: str,
    model_path: str,
    reference: str,
    version: str | None,
    facts: Facts | Mapping[str, Any],
    load: Load,
    seed: int,
    cpus: str = "",
    stopped: Callable[[], bool] = lambda: False,
) -> dict[str, Any]:
    """The part `cross_check` of a run document. What goes wrong stands in it: a run is not lost for a second opinion.

    model_path: the model's folder on the node, for the peer's tokenizer; reference: image and digest of the instance;
    version: vLLM's there; stopped: whether no more is wanted, asked between two looks at the node.
    """
    own: list[Mapping[str, Any]] = []
    theirs: list[Mapping[str, Any]] = []
    failed = None
    try:
        for number, name in enumerate(ORDER):
            if stopped():
                raise StageError("it was ended early")
            repeat = _FIRST + number
            place = f"cross-check, run {number + 1} of {len(ORDER)} ({name})"
            if name == PEER:
                given = {
                    "words": words(load, url=url, model=model),
                    "files": trace(load),
                    "environment": environment(seed, repeat),
                    "model": model_path,
                    "limit_s": round(load.seconds + _MARGIN_S),
                }
                theirs.append(_peer(ask, show, place, stopped, reference=reference, cpus=cpus, **given))
            else:
                asked = plan(load, url=url, model=model, facts=Facts.of(facts), seed=seed, repeat=repeat)
                own.append(ours(asked, place))
    except (StageError, WorkloadError) as error:
        failed = str(error)
    return {
        "peer": PEER,
        "peer_version": version,
        "command": f"{PEER} {shlex.join(words(load, url=url, model=model))}",
        "load": load.document(),
        "order": list(ORDER),
        **judged(own, theirs, load.requests, failed),
    }


def _peer(
    ask: Ask, show: Callable[[str], None], place: str, stopped: Callable[[], bool], **given: Any
) -> Mapping[str, Any]:
    """One run of the peer.

    Raises:
        StageError: it gave no result.
    """
    _good(ask("peer_run", state="begin", **given))
    started_at = time.monotonic()
    try:
        while not stopped() and _good(ask("peer_run", state="look"))["running"]:
            show(f"{place}: {time.monotonic() - started_at:.0f} s")
    finally:
        # Also when somebody interrupts, so that the node is left clean.
        collected = ask("peer_run", state="collect")
    if "result" not in _good(collected):
        raise StageError(f"{PEER} gave no result; its last words:\n{collected.get('said')}")
    result: Mapping[str, Any] = collected["result"]
    return result


def _good(answer: dict[str, Any]) -> dict[str, Any]:
    if answer.get("failed"):
        raise StageError(str(answer.get("msg")))
    return answer
