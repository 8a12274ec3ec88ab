"""Signals that Prometheus does not have: snapshot, inventory, client, and what is worked out of several."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from vllm_node.diagnosis.client import Client
from vllm_node.diagnosis.facts import Instance, UnseenError
from vllm_node.diagnosis.look import Look
from vllm_node.diagnosis.signal import Signal, computed

_EXPORTERS = ("alertmanager.service", "dcgm-exporter.service", "node-exporter.service", "prometheus.service")
# Half of the client's measurement has to lie in the window, or two different loads are compared.
_OVERLAP = 0.5


def _batch_share(look: Look) -> float:
    return look.value("running") / _instance(look).number("max-num-seqs")


def _length_share(look: Look) -> float:
    return (look.value("prompt_p95") + look.value("output_p95")) / _instance(look).number("max-model-len")


def _age_share(name: str) -> Any:
    return lambda look: look.value(name) / look.facts.window_s


def _prefix_change(look: Look) -> float:
    before = look.value("prefix_hits_before")
    if before <= 0:
        raise UnseenError("there were no hits before either")
    return look.value("prefix_hits") / before


def _scrapes_missing(look: Look) -> float:
    interval = look.facts.scrape_interval_s
    if not interval:
        raise UnseenError("the inventory's scrape interval cannot be read")
    return max(0.0, 1 - look.value("scrapes") * interval / look.facts.window_s)


def _stalled(look: Look) -> float:
    return float(look.value("running_least") > 0 and look.value("steps") <= 0)


def _instance(look: Look) -> Instance:
    if look.subject.instance is None:
        raise UnseenError("it is a matter of one instance")
    return look.subject.instance


# snapshot


def _seen(look: Look, *way: str) -> Any:
    at: Any = look.facts.snapshot
    for key in way:
        at = at.get(key) if isinstance(at, Mapping) else None
    if at is None:
        raise UnseenError(f"the snapshot could not see {'.'.join(way)}")
    return at


def _units(look: Look, names: Iterable[str]) -> list[Mapping[str, Any]]:
    wanted = set(names)
    found = [unit for unit in _seen(look, "units", "toolkit") if unit["name"] in wanted]
    if not found:
        raise UnseenError(f"systemd knows none of {', '.join(sorted(wanted))}")
    return found


def _unit_active(look: Look) -> float:
    return float(all(unit["active"] == "active" for unit in _units(look, [_instance(look).unit])))


def _unit_looping(look: Look) -> float:
    (unit, *_) = _units(look, [_instance(look).unit])
    return float(unit["active"] == "failed" or str(unit["sub"]).startswith("auto-restart"))


def _exporters_stopped(look: Look) -> float:
    units = _units(look, _EXPORTERS)
    return float(sum(unit["active"] != "active" for unit in units))


def _units_failed(look: Look) -> float:
    return float(len(_seen(look, "units", "failed")))


def _port_closed(look: Look) -> float:
    port = _instance(look).port
    if port is None:
        raise UnseenError("the inventory names no port")
    return float(not any(one["port"] == port for one in _seen(look, "ports")))


def _disk(look: Look) -> float:
    shares = [
        disk["free_bytes"] / disk["total_bytes"]
        for disk in _seen(look, "disks")
        if disk.get("free_bytes") is not None and disk.get("total_bytes")
    ]
    if not shares:
        raise UnseenError("the snapshot could not see any disk")
    return float(min(shares))


def _memory(look: Look) -> float:
    return float(_seen(look, "memory", "available_bytes") / _seen(look, "memory", "total_bytes"))


def _smi_missing(look: Look) -> float:
    on_the_bus = _seen(look, "gpu", "pci_gpus")
    if not on_the_bus:
        raise UnseenError("the bus holds no GPU of NVIDIA")
    devices = look.facts.snapshot["gpu"].get("devices")
    if devices is None:
        if not look.facts.snapshot["gpu"].get("error"):
            raise UnseenError("the snapshot could not ask nvidia-smi")
        return float(on_the_bus)
    return float(on_the_bus - len(devices))


def _smi_faults(look: Look) -> float:
    devices = _seen(look, "gpu", "devices")
    return float(
        sum(
            bool(
                device.get("remap_failure")
                or device.get("remap_pending")
                or (device.get("ecc_volatile_uncorrectable") or 0) > 0
            )
            for device in devices
        )
    )


def _strangers(look: Look) -> float:
    units = [one.get("unit") for one in _seen(look, "gpu", "processes")]
    strangers = sum(unit is not None and not unit.startswith("vllm-") for unit in units)
    if not strangers and None in units:
        raise UnseenError("the snapshot could not tell whose the processes on the GPUs are")
    return float(strangers)


# client


def _client(look: Look) -> Client:
    client, facts = look.facts.client, look.facts
    if client is None:
        raise UnseenError("no client's measurement was given (--client)")
    name = _instance(look).name
    if client.instance is None and len(facts.instances) > 1:
        raise UnseenError("the client's measurement does not say which instance it is about")
    if client.instance not in (None, name):
        raise UnseenError(f"the client measured {client.instance}")
    if client.start is not None and client.end is not None:
        common = min(client.end, facts.at) - max(client.start, facts.at - facts.window_s)
        if common < _OVERLAP * (client.end - client.start):
            raise UnseenError("the client measured at another time than this window")
    return client


def _gap(measure: str) -> Any:
    """Client over server, by means where both have one: a mean does not depend on the width of buckets."""

    def compute(look: Look) -> float:
        client = _client(look)
        mine: Mapping[str, float] | None = getattr(client, f"{measure}_s")
        if mine is None:
            raise UnseenError(f"the client did not measure {measure}_s")
        kind = "mean" if "mean" in mine else "p95"
        if mine["samples"] < look.limits["samples"]:
            raise UnseenError(f"insufficient: {mine['samples']:.0f} requests at the client")
        server = look.value(f"{measure}_{kind}")
        if server <= 0:
            raise UnseenError("the server's own figure is zero")
        return mine[kind] / server

    return compute


def _client_late(look: Look) -> float:
    client = _client(look)
    told = [value for value in (client.lateness_p99_s, client.loop_lag_p99_s) if value is not None]
    if not told:
        raise UnseenError("the client tells neither lateness nor loop lag")
    return max(told)


def _client_cpu(look: Look) -> float:
    cores = _client(look).cpu_cores
    if cores is None:
        raise UnseenError("the client does not tell its processor time")
    return cores


_AT_SNAPSHOT = "now"

BEYOND: tuple[Signal, ...] = (
    computed(
        "stalled",
        "requests are running and no step is made",
        "yes or no",
        "progress",
        "inferred",
        _stalled,
        window="3m",
    ),
    computed("batch_share", "requests running as a share of max-num-seqs", "ratio", "batch", "derived", _batch_share),
    computed(
        "length_share",
        "prompt p95 and output p95 as a share of max-model-len",
        "ratio",
        "lengths",
        "inferred",
        _length_share,
    ),
    computed(
        "process_young",
        "age of the server process in windows",
        "ratio",
        "process",
        "derived",
        _age_share("process_age"),
        window="now",
    ),
    computed(
        "history",
        "age of Prometheus in windows",
        "ratio",
        "prometheus",
        "derived",
        _age_share("prometheus_age"),
        window="now",
    ),
    computed(
        "prefix_change", "prefix cache hits against the six hours before", "ratio", "prefix", "derived", _prefix_change
    ),
    computed(
        "scrapes_missing", "share of scrapes that never came", "ratio", "scrape count", "derived", _scrapes_missing
    ),
    computed(
        "unit_active", "its unit is active", "yes or no", "systemd", "measured", _unit_active, window=_AT_SNAPSHOT
    ),
    computed(
        "unit_looping",
        "its unit failed or is being restarted",
        "yes or no",
        "systemd",
        "measured",
        _unit_looping,
        window=_AT_SNAPSHOT,
    ),
    computed(
        "exporters_stopped",
        "units of exporters that are not active",
        "count",
        "systemd",
        "measured",
        _exporters_stopped,
        window=_AT_SNAPSHOT,
    ),
    computed("units_failed", "units that failed", "count", "systemd", "measured", _units_failed, window=_AT_SNAPSHOT),
    computed(
        "port_closed", "nobody listens on its port", "yes or no", "port", "measured", _port_closed, window=_AT_SNAPSHOT
    ),
    computed(
        "disk_seen",
        "free space of the fullest disk, as the snapshot saw it",
        "ratio",
        "snapshot disk",
        "measured",
        _disk,
        window=_AT_SNAPSHOT,
    ),
    computed(
        "memory_seen",
        "memory available, as the snapshot saw it",
        "ratio",
        "host memory",
        "measured",
        _memory,
        window=_AT_SNAPSHOT,
    ),
    computed(
        "smi_missing",
        "GPUs on the bus that nvidia-smi does not list",
        "count",
        "nvidia-smi",
        "derived",
        _smi_missing,
        window=_AT_SNAPSHOT,
    ),
    computed(
        "smi_faults",
        "GPUs with memory faults, by nvidia-smi",
        "count",
        "gpu memory",
        "measured",
        _smi_faults,
        window=_AT_SNAPSHOT,
    ),
    computed(
        "strangers",
        "compute processes on GPUs that are no instance's",
        "count",
        "gpu processes",
        "measured",
        _strangers,
        window=_AT_SNAPSHOT,
    ),
    computed("client_ttft", "time to first token, client over server", "ratio", "client", "derived", _gap("ttft")),
    computed("client_e2e", "end-to-end latency, client over server", "ratio", "client", "derived", _gap("e2e")),
    computed(
        "client_late", "client's own lateness or loop lag, p99", "seconds", "client itself", "measured", _client_late
    ),
    computed("client_cpu", "client's processor time", "cores", "client itself", "measured", _client_cpu),
)
