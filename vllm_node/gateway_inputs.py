"""What the types of the gateway's variables leave open: keys to be guessed, certificates that nobody trusts."""

from __future__ import annotations

import datetime
import ipaddress
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from vllm_node.gateway import certificates, keys, plan
from vllm_node.preflight.findings import Finding, fail, finding, warn

_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,62}[a-z0-9])?")
_PATH = re.compile(r"/v1(/[a-z0-9_-]+)+")
_SIZE = re.compile(r"[1-9][0-9]*[kKmM]?")
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?")
# What changes the server instead of asking it.
_NO_QUESTION = re.compile(r"lora_adapter|/v1/models$")
_POSITIVE = ("connections", "answer_timeout_s", "client_timeout_s", "send_timeout_s", "workers")


def check(values: Mapping[str, Any]) -> Iterator[Finding]:
    """Findings `inputs.gateway`, `inputs.gateway-clients`, `inputs.gateway-models` and `inputs.gateway-certificate`.

    Values of a wrong type are told elsewhere, and left out here.
    """
    if str(values.get("gateway_enabled", False)).lower() not in ("true", "yes", "on", "1"):
        return
    for problem in _settings(values):
        yield fail(
            "inputs.gateway",
            problem,
            "nginx would refuse its configuration, or the gateway would let through what it is there to keep out.",
            "Correct the value; docs/gateway.md says what each is for.",
        )
    yield from _clients(values)
    yield from _certificate(values)


def _settings(values: Mapping[str, Any]) -> Iterator[str]:
    for path in _list(values.get("gateway_paths")):
        if not _PATH.fullmatch(str(path)) or _NO_QUESTION.search(str(path)):
            yield f"gateway_paths: {path} is no path below /v1 that asks a model"
    for path, count in Counter(map(str, _list(values.get("gateway_paths")))).items():
        if count > 1:
            yield f"gateway_paths: {path} is there {count} times"
    size = values.get("gateway_max_body")
    if size is not None and not _SIZE.fullmatch(str(size)):
        yield f"gateway_max_body is {size}; a number with k or m is wanted"
    for name in _POSITIVE:
        number = values.get(f"gateway_{name}")
        if isinstance(number, int) and number < 1:
            yield f"gateway_{name} is {number}; at least 1 is wanted"
    address = values.get("gateway_listen_address")
    if address is not None and not _address(str(address)):
        yield f"gateway_listen_address is {address}; an address is wanted, one of IPv6 in brackets"
    if values.get("gateway_port", 8443) == values.get("gateway_status_port", 8444):
        yield "gateway_port and gateway_status_port are the same"
    for name in _list(values.get("gateway_server_names")):
        if not _HOST.fullmatch(str(name)) and not _address(str(name)):
            yield f"gateway_server_names: {name!r} is neither a name nor an address"
    for network in _list(values.get("gateway_allowed_sources")):
        try:
            ipaddress.ip_network(str(network))
        except ValueError as error:
            yield f"gateway_allowed_sources: {error}"


def _clients(values: Mapping[str, Any]) -> Iterator[Finding]:
    clients = [one for one in _list(values.get("gateway_clients")) if isinstance(one, Mapping)]
    if not clients:
        yield warn(
            "inputs.gateway-clients",
            "gateway_enabled is true, and gateway_clients names nobody",
            "The gateway would refuse everybody.",
            "Add a client: a name, and a key that `vllm-node gateway key` has made, in the vault.",
        )
    for problem in [*_names(clients), *_keys(clients)]:
        yield fail(
            "inputs.gateway-clients",
            f"gateway_clients{problem}",
            "A key is all that a client shows: it must not be guessed, and must say who asks.",
            "Correct the entry; `vllm-node gateway key` makes a key that will do.",
        )
    try:
        served = list(plan.ports_of(_list(values.get("vllm_instances"))))
    except (KeyError, TypeError, ValueError, AttributeError):
        return  # told with the instances
    for client in clients:
        unknown = [str(name) for name in _list(client.get("models")) if str(name) not in served]
        if unknown:
            known = ", ".join(served)
            yield warn(
                "inputs.gateway-models",
                f"gateway_clients[{client.get('name')}] may use {', '.join(unknown)}; this node serves {known}",
                "A misspelt name allows nothing.",
                "Correct it, unless another node of the group serves that model.",
            )


def _names(clients: list[Mapping[str, Any]]) -> Iterator[str]:
    for name, count in Counter(str(client.get("name")) for client in clients).items():
        if count > 1:
            yield f": the name {name} is there {count} times"
        if not _NAME.fullmatch(name):
            yield f": {name!r} cannot be a name; take lower case letters, digits and dashes"


def _keys(clients: list[Mapping[str, Any]]) -> Iterator[str]:
    from vllm_node.render import PLACEHOLDER  # which needs this module

    owners: dict[str, list[str]] = {}
    for client in clients:
        for name in ("connections", "requests_per_minute"):
            number = client.get(name)
            if isinstance(number, int) and number < 1:
                yield f"[{client.get('name')}]: {name} is {number}; at least 1 is wanted"
        if client.get("key") == PLACEHOLDER:
            continue
        try:
            owners.setdefault(keys.known_by(client), []).append(str(client.get("name")))
        except ValueError as error:
            yield f"[{client.get('name')}]: {error}"
    for names in owners.values():
        if len(names) > 1:
            yield f": {' and '.join(sorted(names))} have the same key"


def _certificate(values: Mapping[str, Any]) -> Iterator[Finding]:
    from vllm_node.render import PLACEHOLDER  # which needs this module

    certificate, key = (str(values.get(f"gateway_tls_{name}") or "") for name in ("certificate", "key"))
    problems: list[certificates.Complaint] = []
    if bool(certificate) != bool(key):
        missing = "gateway_tls_key" if certificate else "gateway_tls_certificate"
        problems = [certificates.Complaint(f"{missing} is empty, and the other of the two is not")]
    elif certificate:
        now = datetime.datetime.now(datetime.UTC)
        names = [str(name) for name in _list(values.get("gateway_server_names"))]
        seen = None if key == PLACEHOLDER else key
        problems = list(certificates.complaints(certificate, seen, names, now))
    for problem in problems:
        yield finding(
            "fail" if problem.stops else "warn",
            "inputs.gateway-certificate",
            problem.text,
            "Clients would refuse to speak to the gateway, or nginx to start.",
            "Get the site's authority to sign a new one, or leave both variables empty: the node makes its own.",
        )


def _address(text: str) -> bool:
    bare = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    try:
        return (ipaddress.ip_address(bare).version == 6) == (bare != text)
    except ValueError:
        return False


def _list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else []
