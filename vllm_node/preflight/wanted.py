"""What the site wants on a node: its variables, brought into one form.

Reading is tolerant: a value of the wrong type is left out here and reported by `vllm_node.inputs`, so that
one wrong value does not hide all other findings.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from vllm_node.models import store
from vllm_node.models.manifest import Manifest
from vllm_node.registries import Mirror, mirrors

_SIZE = re.compile(r"(\d+)\s*([bkmgt]?)i?b?$", re.IGNORECASE)
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True)
class Instance:
    """One vLLM unit. `gpus` are CDI names after `nvidia.com/gpu=`, an empty tuple means none."""

    name: str
    image: str = "vllm"
    model: str | None = None
    gpus: tuple[str, ...] = ()
    port: int | None = None
    args: Mapping[str, Any] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    served_model_name: str | None = None
    profile: str | None = None
    shm_bytes: int | None = None
    start_budget_s: float = 3600.0

    @property
    def unit(self) -> str:
        """Name of its systemd service."""
        return f"vllm-{self.name}.service"

    @property
    def served(self) -> str:
        """Its name in the API."""
        return self.served_model_name or self.name

    @property
    def beyond_loopback(self) -> str | None:
        """Address it listens on when that is more than loopback."""
        host = str(self.args.get("host") or "127.0.0.1")
        return None if host in _LOOPBACK else host

    def has_arg(self, name: str) -> bool:
        """Whether an argument of vLLM is given and not switched off; dashes and underscores are the same."""
        return any(
            str(key).replace("_", "-").lstrip("-") == name and value not in (False, None)
            for key, value in self.args.items()
        )


@dataclass(frozen=True)
class Port:
    """A TCP port that one of our units will listen on."""

    number: int
    unit: str
    variable: str


@dataclass(frozen=True)
class Image:
    """An entry of the image lock, as it stands there."""

    name: str
    repository: str | None
    tag: str | None
    digest: str | None
    architecture: str | None

    @property
    def pinned(self) -> bool:
        """Whether the digest has the form of one."""
        return bool(re.fullmatch(r"sha256:[0-9a-f]{64}", self.digest or ""))

    @property
    def placeholder(self) -> bool:
        """Whether the digest only holds the place of one: all zeros, as the example inventory has them."""
        return bool(re.fullmatch(r"sha256:0{64}", self.digest or ""))

    @property
    def reference(self) -> str:
        """The name by which it is pulled and found on the node."""
        return f"{self.repository}@{self.digest}"


@dataclass(frozen=True)
class Packages:
    """RPM packages that the site wants, from `repository`; without one the site sees to them itself."""

    repository: str | None = None
    gpg_key: str = ""
    install: tuple[str, ...] = ()
    versionlock: tuple[str, ...] = ()


@dataclass(frozen=True)
class Door:
    """The gateway's port, where it listens beyond loopback. `zone` is firewalld's, None for the node's own."""

    port: int
    sources: tuple[str, ...] = ()
    zone: str | None = None


@dataclass(frozen=True)
class Limits:
    """Thresholds, the `preflight_*` variables."""

    ignore: tuple[str, ...] = ()
    time_skew_s: float = 30.0
    time_skew_warn_s: float = 2.0
    storage_margin_gib: float = 10.0
    image_unpack_factor: float = 2.5
    state_free_mib: float = 200.0
    free_inodes: int = 100_000
    memory_reserve_gib: float = 4.0


@dataclass(frozen=True)
class Wanted:
    """Everything of the site's variables that a check compares with.

    `image_users` maps names of the image lock to who needs them; `generates_cdi` is False where the site
    keeps the whole GPU runtime itself. `deliveries` maps folders that models will be brought to onto their manifests,
    None where there is no usable one; `delivery_problems` say why. `image_bundle` is the bundle that images are brought
    from, where there is one. `gpu_name` and `gpu_memory_gib` are what the site itself says of the node's GPUs.
    `gateway`: whether there is one in front of the instances; `door` is what the firewall has to let through of it.
    `selinux_boolean`: whether the toolkit may switch the boolean on that lets containers use GPUs.
    """

    host: str
    instances: tuple[Instance, ...] = ()
    ports: tuple[Port, ...] = ()
    images: tuple[Image, ...] = ()
    registry: str | None = None
    mirrors: tuple[Mirror, ...] = ()
    packages: Packages = field(default_factory=Packages)
    state_dir: str = "/var/lib/vllm-node"
    journal_max_use: str | None = None
    image_users: Mapping[str, str] = field(default_factory=dict)
    image_bundle: str | None = None
    generates_cdi: bool = True
    cdi_source: str = "auto"
    selinux_boolean: bool = True
    gpu_name: str | None = None
    gpu_memory_gib: float | None = None
    gateway: bool = False
    door: Door | None = None
    deliveries: Mapping[str, Manifest | None] = field(default_factory=dict)
    delivery_problems: tuple[str, ...] = ()
    limits: Limits = field(default_factory=Limits)

    @property
    def gpu_instances(self) -> tuple[Instance, ...]:
        """Instances that ask for a GPU."""
        return tuple(each for each in self.instances if each.gpus)

    @property
    def components(self) -> frozenset[str]:
        """Names of the systemd services that will be ours."""
        return frozenset({port.unit for port in self.ports} | {each.unit for each in self.instances})


_COMPONENTS = ("dcgm_exporter", "node_exporter", "prometheus", "alertmanager", "grafana", "gateway")


def wanted_from(host: str, variables: Mapping[str, Any]) -> Wanted:
    """The site's wishes out of a node's variables. Never raises."""
    shm_size, budget_s = variables.get("vllm_shm_size"), variables.get("vllm_start_budget_s")
    instances = tuple(
        _instance(entry, shm_size, budget_s)
        for entry in _list(variables.get("vllm_instances"))
        if isinstance(entry, Mapping)
    )
    ports = [
        Port(each.port, each.unit, f"vllm_instances[{each.name}].port")
        for each in instances
        if each.port is not None
    ]
    images = {each.image: f"instance {each.name}" for each in instances}
    for name in _COMPONENTS:
        number = _integer(variables.get(f"{name}_port"))
        if number is not None and _on(variables.get(f"{name}_enabled")):
            ports.append(Port(number, f"{name.replace('_', '-')}.service", f"{name}_port"))
            images[name] = f"role {name}"
    status_port = _integer(variables.get("gateway_status_port"))
    if status_port is not None and "gateway" in images:
        ports.append(Port(status_port, "gateway.service", "gateway_status_port"))
    lock = variables.get("images_lock")
    deliveries, problems = _deliveries(variables)
    return Wanted(
        host=host,
        instances=instances,
        ports=tuple(ports),
        images=tuple(
            _image(str(name), entry) for name, entry in (lock.items() if isinstance(lock, Mapping) else ())
        ),
        registry=_text(variables.get("container_host_registry_address")),
        mirrors=mirrors(variables.get("container_host_mirrors")),
        packages=_packages(variables),
        state_dir=_text(variables.get("container_host_state_dir")) or "/var/lib/vllm-node",
        journal_max_use=_text(variables.get("container_host_journal_max_use")),
        image_users=images,
        image_bundle=_text(variables.get("image_load_bundle")),
        generates_cdi=_on(variables.get("gpu_runtime_enabled")),
        cdi_source=_text(variables.get("gpu_runtime_cdi_source")) or "auto",
        selinux_boolean=_on(variables.get("gpu_runtime_selinux_boolean")),
        gpu_name=_text(variables.get("vllm_gpu_name")),
        gpu_memory_gib=_number(variables.get("vllm_gpu_memory_gib")),
        gateway=variables.get("gateway_enabled") is not None and _on(variables.get("gateway_enabled")),
        door=_door(variables),
        deliveries=deliveries,
        delivery_problems=problems,
        limits=_limits(variables),
    )


def _instance(entry: Mapping[str, Any], shm_size: Any, budget_s: Any) -> Instance:
    args, env = entry.get("args"), entry.get("env")
    return Instance(
        name=str(entry.get("name", "?")),
        image=_text(entry.get("image")) or "vllm",
        model=_text(entry.get("model")),
        gpus=tuple(str(gpu) for gpu in _list(entry.get("gpus"))),
        port=_integer(entry.get("port")),
        args={str(key): value for key, value in args.items()} if isinstance(args, Mapping) else {},
        env={str(key): str(value) for key, value in env.items()} if isinstance(env, Mapping) else {},
        served_model_name=_text(entry.get("served_model_name")),
        profile=_text(entry.get("profile")),
        shm_bytes=size_bytes(entry.get("shm_size") or shm_size),
        start_budget_s=_number(entry.get("start_budget_s") or budget_s) or Instance.start_budget_s,
    )


def _deliveries(variables: Mapping[str, Any]) -> tuple[dict[str, Manifest | None], tuple[str, ...]]:
    try:
        models = store.wanted(variables)
    except store.StoreError as error:
        return dict.fromkeys(store.trees(variables)), tuple(str(error).splitlines())
    return {model.tree: model.manifest for model in models if model.delivered}, ()


def _packages(variables: Mapping[str, Any]) -> Packages:
    return Packages(
        _text(variables.get("packages_repository")),
        _text(variables.get("packages_gpg_key")) or "",
        tuple(map(str, _list(variables.get("packages_install")))),
        tuple(map(str, _list(variables.get("packages_versionlock")))),
    )


def _door(variables: Mapping[str, Any]) -> Door | None:
    port = _integer(variables.get("gateway_port"))
    is_on = variables.get("gateway_enabled") is not None and _on(variables.get("gateway_enabled"))
    address = str(variables.get("gateway_listen_address") or "").strip("[]")
    if port is None or not is_on or address in _LOOPBACK or not _on(variables.get("firewall_enabled")):
        return None
    sources = tuple(str(each) for each in _list(variables.get("gateway_allowed_sources")))
    return Door(port, sources, _text(variables.get("firewall_zone")))


def _image(name: str, entry: Any) -> Image:
    values = entry if isinstance(entry, Mapping) else {}
    return Image(
        name,
        *(_text(values.get(key)) for key in ("repository", "tag", "digest", "architecture")),
    )


def _limits(variables: Mapping[str, Any]) -> Limits:
    known = Limits()
    found: dict[str, Any] = {}
    for name in known.__dataclass_fields__:
        value = variables.get(f"preflight_{name}")
        if name == "ignore":
            found[name] = tuple(str(each) for each in _list(value))
        elif _number(value) is not None:
            found[name] = _number(value)
    return Limits(**found)


def size_bytes(value: Any) -> int | None:
    """Bytes of a size as podman writes it ("16g", "512m", 1024), None for anything else."""
    match = _SIZE.fullmatch(str(value).strip()) if isinstance(value, int | str) else None
    return (
        int(match.group(1)) << (10 * " kmgt".index(match.group(2).lower().replace("b", "") or " "))
        if match
        else None
    )


def _list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else []


def _on(value: Any) -> bool:
    """A switch as Ansible reads it; not set means on."""
    return value is None or str(value).strip().lower() in ("true", "yes", "on", "1", "y", "t")


def _text(value: Any) -> str | None:
    return str(value) if isinstance(value, str) and value else None


def _integer(value: Any) -> int | None:
    number = _number(value)
    return int(number) if number is not None and number == int(number) else None


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if abs(number) < 1e18 else None
