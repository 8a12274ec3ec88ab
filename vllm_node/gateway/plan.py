"""What of the instances and clients of a node goes into nginx's configuration."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

# Of the requests of a minute this part may come at once.
_BURST = 6


def model_names(instance: Mapping[str, Any]) -> list[str]:
    """Names under which an entry of `vllm_instances` serves: its model's, and those of its LoRA adapters."""
    args = {str(flag).replace("_", "-"): value for flag, value in (instance.get("args") or {}).items()}
    given = args.get("served-model-name") or instance.get("served_model_name") or instance["name"]
    names = [given] if isinstance(given, str) else list(given)
    adapters = args.get("lora-modules") or []
    for adapter in [adapters] if isinstance(adapters, str | Mapping) else adapters:
        names.append(_adapter(adapter))
    return list(dict.fromkeys(map(str, names)))


def _adapter(adapter: Any) -> str:
    if isinstance(adapter, str) and adapter.lstrip().startswith("{"):
        adapter = json.loads(adapter)
    return str(adapter["name"]) if isinstance(adapter, Mapping) else str(adapter).partition("=")[0]


def ports_of(instances: Iterable[Mapping[str, Any]]) -> dict[str, tuple[int, ...]]:
    """Ports of the instances that serve each model, by its name."""
    found: dict[str, list[int]] = {}
    for instance in instances:
        for name in model_names(instance):
            found.setdefault(name, []).append(int(instance["port"]))
    return {name: tuple(sorted(set(ports))) for name, ports in sorted(found.items())}


def _upstream(ports: Sequence[int]) -> str:
    return "instances_" + "_".join(map(str, ports))


def plan(
    instances: Sequence[Mapping[str, Any]], clients: Sequence[Mapping[str, Any]], connections: int
) -> dict[str, Any]:
    """`ports` of all instances, `upstreams` ({name, ports}), and `limits` as lines of nginx's configuration.

    `connections` is how many answers a client may have under way that says nothing else itself.
    """
    groups = sorted(set(ports_of(instances).values()))
    return {
        "ports": sorted({int(instance["port"]) for instance in instances}),
        "upstreams": [{"name": _upstream(ports), "ports": list(ports)} for ports in groups],
        "limits": [
            *_limits(clients, lambda one: one.get("connections") or connections, _connections),
            *_limits(clients, lambda one: one.get("requests_per_minute"), _rate),
        ],
    }


def routes(instances: Sequence[Mapping[str, Any]]) -> str:
    """The file that tells the gateway where each model is: `{models: [{name, upstream}], ports: [...]}`."""
    models = [{"name": name, "upstream": _upstream(ports)} for name, ports in ports_of(instances).items()]
    return json.dumps({"models": models, "ports": plan(instances, [], 1)["ports"]}, indent=1) + "\n"


def _limits(
    clients: Sequence[Mapping[str, Any]],
    of: Callable[[Mapping[str, Any]], Any],
    lines: Callable[[int], dict[str, str]],
) -> list[dict[str, Any]]:
    """One for each number that occurs. A limit of nginx has one number for all, but counts only those with a key."""
    numbers = sorted({int(of(client)) for client in clients if of(client)})
    return [
        {**lines(number), "clients": sorted(str(one["name"]) for one in clients if of(one) and int(of(one)) == number)}
        for number in numbers
    ]


def _connections(number: int) -> dict[str, str]:
    name = f"gateway_connections_{number}"
    return {
        "what": f"At most {number} answers under way for each of:",
        "name": name,
        "zone": f"limit_conn_zone ${name} zone={name}:1m;",
        "rule": f"limit_conn {name} {number};",
    }


def _rate(number: int) -> dict[str, str]:
    name, burst = f"gateway_rate_{number}", max(1, number // _BURST)
    return {
        "what": f"{number} requests a minute, and {burst} at once, for each of:",
        "name": name,
        "zone": f"limit_req_zone ${name} zone={name}:1m rate={number}r/m;",
        "rule": f"limit_req zone={name} burst={burst} nodelay;",
    }
