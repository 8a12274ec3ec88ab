"""Flags that are right by themselves and wrong together, or with what else is known of their instance."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from vllm_node.serving.flags.problems import Kind, Level, Problem
from vllm_node.serving.flags.values import whole

# Flag → values by its name; keys as the site wrote them are looked up for the sentences.
Settings = Mapping[str, Any]

# Those of one copy of the model, and how many copies there are.
_OF_A_COPY = ("tensor-parallel-size", "pipeline-parallel-size", "prefill-context-parallel-size")
SIZES = (*_OF_A_COPY, "data-parallel-size", "data-parallel-size-local")
_TLS = ("ssl-certfile", "ssl-keyfile", "ssl-ca-certs")
_GRAPH_FLAGS = ("cudagraph-capture-sizes", "max-cudagraph-capture-size", "cudagraph-metrics")


def between_flags(settings: Settings) -> Iterator[Problem]:
    """Flags that contradict each other."""
    yield from _budget(settings)
    graphs = _graphs(settings)
    if settings.get("enforce-eager") is True and graphs:
        yield _problem(
            "conflict",
            "warn",
            "enforce-eager",
            f"enforce-eager switches CUDA graphs off, so {graphs} has no effect",
            "Take one of them out; without enforce-eager answers come faster.",
        )


def _budget(settings: Settings) -> Iterator[Problem]:
    tokens, requests, length = (
        whole(settings.get(name)) for name in ("max-num-batched-tokens", "max-num-seqs", "max-model-len")
    )
    if tokens is not None and requests is not None and 0 < tokens < requests:
        yield _problem(
            "conflict",
            "fail",
            "max-num-batched-tokens",
            f"max-num-batched-tokens {tokens} is below max-num-seqs {requests}",
            f"Each running request takes a token a step: set max-num-batched-tokens to {requests} or more, or "
            f"max-num-seqs to {tokens} or less. Small budgets space tokens evenly, large ones bring first tokens "
            "sooner.",
        )
    if settings.get("enable-chunked-prefill") is not False:
        return
    if tokens is not None and length is not None and 0 < tokens < length:
        yield _problem(
            "conflict",
            "fail",
            "max-num-batched-tokens",
            f"max-num-batched-tokens {tokens} is below max-model-len {length} while chunked prefill is off",
            "A long prompt would fit into no step: take enable-chunked-prefill: false out (it is on by default), or "
            f"set max-num-batched-tokens to {length} or more.",
        )
    else:
        yield _problem(
            "conflict",
            "warn",
            "enable-chunked-prefill",
            "chunked prefill is switched off, which the engine of today does not support officially",
            "Take it out: it is on by default.",
        )


def _graphs(settings: Settings) -> str | None:
    given = next((name for name in _GRAPH_FLAGS if settings.get(name) not in (None, False)), None)
    if given:
        return given
    config = settings.get("compilation-config")
    text = str(config) if isinstance(config, str | Mapping) else ""
    parts = [name for name in settings if name.startswith("compilation-config.")]
    return "compilation-config" if "cudagraph" in text else next((part for part in parts if "cudagraph" in part), None)


def with_gpus(settings: Settings, gpus: int | None) -> Iterator[Problem]:
    """Sizes of parallelism against the number of GPUs of the instance; None or 0 where that is not to be judged."""
    sizes = {name: whole(settings.get(name)) or 1 for name in _OF_A_COPY}
    data = whole(settings.get("data-parallel-size-local"))
    name = "data-parallel-size" if data is None else "data-parallel-size-local"
    sizes[name] = data if data is not None else whole(settings.get("data-parallel-size")) or 1
    if not gpus or (whole(settings.get("nnodes")) or 1) > 1:
        return
    product = 1
    for size in sizes.values():
        product *= size
    if product == gpus:
        return
    told = " x ".join(f"{name} {size}" for name, size in sizes.items() if size != 1) or "tensor-parallel-size 1"
    subject = next((name for name, size in sizes.items() if size != 1), "tensor-parallel-size")
    few = product < gpus
    yield _problem(
        "conflict",
        "warn" if few else "fail",
        subject,
        f"{told} uses {product} of the {gpus} GPUs of the instance"
        if few
        else f"{told} needs {product} GPUs, the instance has {gpus}",
        f"Set tensor-parallel-size so that all sizes multiply to {gpus}, or give the instance {product} "
        f"GPU{'' if product == 1 else 's'}.",
    )


def with_instance(settings: Settings, port: int | None, served: str | None) -> Iterator[Problem]:
    """Flags for what the instance has keys of its own, or that would hide it from all that watches it."""
    given = whole(settings.get("port"))
    if port is not None and given is not None and given != port:
        yield _problem(
            "owned",
            "fail",
            "port",
            f"port {given} among the args, and port {port} of the instance",
            "Take it out of args: the health check, the metrics and the gateway ask the instance's port.",
        )
    names = settings.get("served-model-name")
    listed = [str(each) for each in names] if isinstance(names, list | tuple) else [str(names)]
    if served is not None and names is not None and served not in listed:
        yield _problem(
            "owned",
            "fail",
            "served-model-name",
            f"served-model-name {', '.join(listed)} among the args, and the instance is known as {served}",
            "Write served_model_name beside args, not in it; for more names list it among them.",
        )
    for name, seen, mend in (
        ("model", "the model is told twice", "Take it out: the instance serves the folder that its model says."),
        ("uds", "with uds nothing listens on the port", "Take it out: health check, metrics and gateway ask the port."),
        ("headless", "with headless nothing answers over HTTP", "Take it out."),
        ("grpc", "with grpc nothing answers over HTTP", "Take it out."),
    ):
        if settings.get(name) not in (None, False):
            yield _problem("owned", "fail", name, seen, mend)
    for name in _TLS:
        if settings.get(name) is not None:
            yield _problem(
                "owned",
                "fail",
                name,
                f"{name} makes the instance speak TLS on loopback, where its health check speaks HTTP",
                "Take it out: the gateway speaks TLS to the outside.",
            )
    if settings.get("config") is not None:
        yield _problem(
            "owned", "warn", "config", "flags in a config file are judged by nobody", "Write them among the args."
        )
    if settings.get("disable-log-stats") is True:
        yield _problem(
            "owned",
            "warn",
            "disable-log-stats",
            "without statistics /metrics has nothing about the engine, so dashboards stay empty and alerts silent",
            "Take it out.",
        )


def secrets(settings: Settings) -> Iterator[Problem]:
    """Keys and tokens, which a command line shows to everybody who may read the unit or list processes."""
    for name, mend in (
        ("api-key", "Take it out: the gateway keeps keys of clients; vLLM itself listens on loopback only."),
        ("hf-token", "Take it out: the node serves from a folder and asks no hub."),
    ):
        if settings.get(name) not in (None, False):
            yield _problem("secret", "fail", name, f"{name} would stand in the unit and in the list of processes", mend)


def _problem(kind: Kind, level: Level, subject: str, seen: str, mend: str) -> Problem:
    return Problem(kind, level, subject, seen, mend, subject)
