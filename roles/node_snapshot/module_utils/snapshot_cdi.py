"""CDI specs on the node: what they offer, for which driver, and what they point at that is not there."""

from __future__ import annotations

import json
import re
from typing import Any

from ansible.module_utils import snapshot_yaml

# /var/run is a link to /run everywhere; the later folder wins when both name a device.
FOLDERS = ("/etc/cdi", "/run/cdi")
_LIBRARY_VERSION = re.compile(r"\.so\.(\d{3,}\.\d+(?:\.\d+)?)$")
_TOOLKIT_VERSION = re.compile(r"version\s+v?(\d+\.\d+\.\d+\S*)")


def probe(host: Any) -> dict[str, Any]:
    """Toolkit version and every spec in the folders that podman may search."""
    specs = []
    for folder in FOLDERS:
        for name in host.names(folder):
            if name.endswith((".yaml", ".yml", ".json")):
                path = f"{folder}/{name}"
                specs.append(spec(path, host.read(path, 16 << 20), host.exists))
    toolkit = None
    if host.which("nvidia-ctk"):
        answer = host.run("nvidia-ctk", "--version")
        toolkit = toolkit_version(answer.out)
        if toolkit is None:
            host.unseen("cdi.toolkit", answer.trouble or "nvidia-ctk names no version")
    return {"toolkit": toolkit, "specs": specs}


def toolkit_version(text: str) -> str | None:
    """Version in the answer of `nvidia-ctk --version`, or None."""
    match = _TOOLKIT_VERSION.search(text)
    return match.group(1) if match else None


def spec(path: str, text: str | None, exists: Any) -> dict[str, Any]:
    """One spec as the snapshot shows it; `exists(path)` tells whether a path of the node is there.

    Never raises: a spec that cannot be read carries the reason in `error`, because podman drops it silently.
    """
    found: dict[str, Any] = {
        "path": path,
        "cdi_version": None,
        "kind": None,
        "devices": [],
        "driver_versions": [],
        "missing_paths": [],
        "error": None,
    }
    if text is None:
        found["error"] = "cannot be read (permission?)"
        return found
    try:
        data = _parse(path, text)
        if not isinstance(data, dict):
            raise ValueError("is no mapping")
        _fill(found, data, exists)
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        found["error"] = str(error) or type(error).__name__
    return found


def _fill(found: dict[str, Any], data: dict[str, Any], exists: Any) -> None:
    for key, source in (("cdi_version", "cdiVersion"), ("kind", "kind")):
        if data.get(source) is None:
            found["error"] = f"has no {source}"
        else:
            found[key] = str(data[source])
    devices = data.get("devices") or []
    found["devices"] = [str(device["name"]) for device in devices if device.get("name") is not None]
    paths: set[str] = set()
    for edits in [data.get("containerEdits")] + [device.get("containerEdits") for device in devices]:
        paths.update(_host_paths(edits or {}))
    found["missing_paths"] = sorted(path for path in paths if not exists(path))
    versions = (_LIBRARY_VERSION.search(path) for path in paths)
    found["driver_versions"] = sorted({match.group(1) for match in versions if match})


def _host_paths(edits: dict[str, Any]) -> list[str]:
    paths = [mount.get("hostPath") for mount in edits.get("mounts") or []]
    # A device node without hostPath has the same path on the node as in the container.
    paths += [node.get("hostPath") or node.get("path") for node in edits.get("deviceNodes") or []]
    paths += [hook.get("path") for hook in edits.get("hooks") or []]
    return [path for path in paths if isinstance(path, str) and path.startswith("/")]


def _parse(path: str, text: str) -> Any:
    if path.endswith(".json"):
        return json.loads(text)
    try:
        return snapshot_yaml.read(text)
    except snapshot_yaml.YamlError as error:
        try:
            # Not the first choice: RHEL's Python has it only when dnf happens to bring it.
            import yaml
        except ImportError:
            raise ValueError(str(error)) from None
        try:
            return yaml.safe_load(text)
        except yaml.YAMLError as reason:
            raise ValueError(" ".join(str(reason).split())) from None
