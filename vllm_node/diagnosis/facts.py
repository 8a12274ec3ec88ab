"""What is known about a node for a diagnosis: Prometheus's answers, the snapshot, the inventory, a client's file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from vllm_node.diagnosis.client import Client


class UnseenError(Exception):
    """A value that cannot be known; the text says why. It never becomes zero."""


@dataclass(frozen=True)
class Instance:
    """A vLLM instance as the inventory has it. `gpus` are CDI names: indices, UUIDs, MIG devices or `all`."""

    name: str
    port: int | None = None
    gpus: tuple[str, ...] = ()
    args: Mapping[str, Any] = field(default_factory=dict)

    @property
    def unit(self) -> str:
        """Its unit in systemd."""
        return f"vllm-{self.name}.service"

    def number(self, flag: str) -> float:
        """The number that a flag of `vllm serve` is given. Raises UnseenError when the inventory leaves it to vLLM."""
        for name in (flag, flag.replace("-", "_")):
            value = self.args.get(name)
            if isinstance(value, int | float) and not isinstance(value, bool):
                return float(value)
            if isinstance(value, str) and value.replace(".", "", 1).isdigit():
                return float(value)
        raise UnseenError(f"the inventory sets no {flag}, so vLLM chose it by itself")


@dataclass(frozen=True)
class Subject:
    """What a hypothesis is about: an instance with its GPUs, or the node as a whole (`instance` None)."""

    node: str
    instance: Instance | None = None

    @property
    def name(self) -> str:
        """For people."""
        return f"instance {self.instance.name}" if self.instance else "the node"

    def owns(self, labels: Mapping[str, str]) -> bool:
        """Whether a series is about this subject; one that names neither instance nor GPU is about the whole node."""
        if self.instance is None:
            return True
        if "gpu" in labels or "UUID" in labels:
            return any(_same_gpu(name, labels) for name in self.instance.gpus)
        return labels.get("instance", self.instance.name) == self.instance.name


def _same_gpu(name: str, labels: Mapping[str, str]) -> bool:
    # A MIG device "0:1" is watched on its parent here: what slows a GPU slows all of its parts.
    return name == "all" or name == labels.get("UUID") or name.partition(":")[0] == labels.get("gpu")


@dataclass(frozen=True)
class Facts:
    """Everything that signals are read from.

    answers: what the module `prometheus_query` returns; window_s and at: seconds; alerts: thresholds by alert;
    scrape_interval_s: as the inventory has it.
    """

    host: str
    at: float
    window_s: int
    answers: Mapping[str, Mapping[str, Any]]
    instances: Sequence[Instance] = ()
    snapshot: Mapping[str, Any] = field(default_factory=dict)
    client: Client | None = None
    alerts: Mapping[str, float] = field(default_factory=dict)
    scrape_interval_s: float | None = None
    prometheus_url: str = ""

    def subjects(self) -> list[Subject]:
        """Each instance, then the node."""
        return [*(Subject(self.host, one) for one in self.instances), Subject(self.host)]


def instances(wanted: Any) -> list[Instance]:
    """Instances out of the inventory's `vllm_instances`; entries of another form are preflight's affair."""
    return [
        Instance(
            name=str(entry["name"]),
            port=entry.get("port"),
            gpus=tuple(str(gpu) for gpu in entry.get("gpus") or ()),
            args=entry.get("args") or {},
        )
        for entry in (wanted if isinstance(wanted, list) else [])
        if isinstance(entry, Mapping) and entry.get("name")
    ]
