"""Environment variables that do something else than their name promises, or show a secret to everybody."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from vllm_node.serving.flags.problems import Problem

_SECRETS = ("VLLM_API_KEY", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
_OFF = ("0", "false", "no", "off", "")
# They are set for every instance, and switched on.
_OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "VLLM_NO_USAGE_STATS", "DO_NOT_TRACK")


def problems(env: Mapping[str, str]) -> Iterator[Problem]:
    """What is wrong with the `env` of an instance."""
    for name, value in env.items():
        text = str(value).strip()
        if name in _SECRETS:
            yield Problem(
                "secret",
                "fail",
                name,
                f"{name} would stand in the unit, and `podman inspect` shows it",
                "Take it out: the gateway keeps keys of clients, and the node asks no hub.",
            )
        elif name == "VLLM_PORT":
            yield Problem(
                "environment",
                "fail",
                name,
                "VLLM_PORT is the first of the ports that vLLM's processes use among themselves, not the API's",
                "Take it out: port of the instance is the port of the API.",
            )
        elif name in ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"):
            yield Problem(
                "environment",
                "warn",
                name,
                f"{name} chooses among the GPUs that the container has got already, counted anew from 0",
                "Take it out: gpus of the instance says which GPUs it gets.",
            )
        elif name == "VLLM_USE_V1":
            yield Problem(
                "environment",
                "warn",
                name,
                "VLLM_USE_V1 chose between two engines, of which the old one is gone since 0.11.1",
                "Take it out.",
            )
        elif name == "VLLM_HOST_IP" and not text.startswith("127."):
            yield Problem(
                "environment",
                "warn",
                name,
                f"VLLM_HOST_IP {text} is where vLLM's processes talk to each other in clear, not the API's address",
                "Take it out, unless the instance spans several nodes.",
            )
        elif name in _OFFLINE and text.lower() in _OFF:
            yield Problem(
                "environment",
                "warn",
                name,
                f"{name}={text} lets the instance call home, which waits for its time limits where there is no way out",
                "Take it out: it is switched on for every instance.",
            )
