"""What a node's endpoints offer, as the module `metrics_schema` tells it: read, written to a file, asked by series."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

SCHEMA = 1
STATES = ("ok", "gone", "off")
_HEAD = "# Written by `vllm-node metrics snapshot`: names, types, labels and edges of a node's metrics, no values.\n"


@dataclass(frozen=True)
class Family:
    """One metric of an endpoint. `edges` and `quantiles` are as written there, `series` is their number."""

    name: str
    type: str
    unit: str | None = None
    labels: frozenset[str] = frozenset()
    edges: tuple[str, ...] = ()
    quantiles: tuple[str, ...] = ()
    suffixes: tuple[str, ...] = ("",)
    series: int = 0

    def has_label(self, label: str) -> bool:
        """Whether its samples carry the label."""
        special = {"le": self.edges, "quantile": self.quantiles}
        return label in self.labels or bool(special.get(label))


@dataclass(frozen=True)
class Endpoint:
    """One page of metrics. state: `ok`; `gone`, it did not answer with metrics (see `error`); `off`, not enabled."""

    job: str
    instance: str
    url: str
    state: str
    error: str | None = None
    version: str | None = None
    families: Mapping[str, Family] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """How it is called where people read."""
        return f"{self.job}/{self.instance}"

    @property
    def place(self) -> str:
        """Where to look at it."""
        return f"`curl {self.url}` on the node" if self.url.startswith("http") else self.url

    def series(self) -> dict[str, Family]:
        """Its families by the names that PromQL uses."""
        return {family.name + suffix: family for family in self.families.values() for suffix in family.suffixes}


def document(endpoints: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """What a file of a schema holds, out of the module's answer."""
    return {"schema": SCHEMA, "endpoints": [dict(one) for one in endpoints]}


def write(folder: Path, host: str, endpoints: Iterable[Mapping[str, Any]]) -> Path:
    """Write the schema of a node to `folder`/`host`.yml and return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{host}.yml"
    # Through JSON's types only: what comes out of Ansible is marked text that YAML would not know.
    text = yaml.safe_dump(_plain(document(endpoints)), sort_keys=False, default_flow_style=None, width=120)
    path.write_text(_HEAD + text)
    return path


def read(path: Path) -> list[Endpoint]:
    """Endpoints of a file. Raises ValueError, saying what is wrong with it."""
    try:
        data = yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ValueError(f"{path}: {error}") from error
    if not isinstance(data, Mapping) or data.get("schema") != SCHEMA:
        raise ValueError(f"{path} is no schema of metrics of version {SCHEMA}; `vllm-node metrics snapshot` writes one")
    try:
        return parse(data["endpoints"])
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is damaged: {type(error).__name__}: {error}") from error


def parse(endpoints: Iterable[Mapping[str, Any]]) -> list[Endpoint]:
    """Endpoints of the module's answer. Raises KeyError, TypeError or AttributeError for what is none."""
    return [
        Endpoint(
            job=one["job"],
            instance=one["instance"],
            url=one["url"],
            state=one["state"],
            error=one.get("error"),
            version=one.get("version"),
            families={name: _family(name, said) for name, said in (one.get("metrics") or {}).items()},
        )
        for one in endpoints
    ]


def _family(name: str, said: Mapping[str, Any]) -> Family:
    return Family(
        name=name,
        type=said["type"],
        unit=said.get("unit"),
        labels=frozenset(said.get("labels") or ()),
        edges=tuple(said.get("edges") or ()),
        quantiles=tuple(said.get("quantiles") or ()),
        suffixes=tuple(said.get("suffixes") or ("",)),
        series=said["series"],
    )


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return str(value) if isinstance(value, str) else value
