"""Where a run comes from: everything that somebody needs who wants to repeat it, and what could not be observed."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vllm_node.bench import flags
from vllm_node.bench.redaction import Redactor, redact
from vllm_node.paths import project_root

__all__ = ["Facts", "Redactor", "collect", "digest", "redact"]

_GIT_LIMIT_S = 10
_VLLM_DEFAULTS = "flags that neither the inventory nor the role sets have vLLM's own defaults, which cannot be observed"


@dataclass(frozen=True)
class Facts:
    """What is known when a run ends; None is what nobody asked for.

    snapshot: of `node_snapshot`; instance: its entry of `vllm_instances`; role_args: what the role adds to its args;
    lock: `images_lock`; observed: the answer of `instance_facts`; manifest_sha256: of the model's manifest;
    metrics_schema: the endpoints of `metrics_schema`.
    """

    snapshot: Mapping[str, Any] | None = None
    instance: Mapping[str, Any] | None = None
    role_args: Mapping[str, Any] | None = None
    lock: Mapping[str, Mapping[str, Any]] | None = None
    observed: Mapping[str, Any] | None = None
    manifest_sha256: str | None = None
    slo: Mapping[str, Any] | None = None
    workload: Mapping[str, Any] | None = None
    seed: int | None = None
    definitions: Mapping[str, str] | None = None
    selfcheck: Any = None
    metrics_schema: Sequence[Mapping[str, Any]] | None = None
    root: Path | None = None


def collect(facts: Facts) -> tuple[dict[str, Any], list[dict[str, str]]]:
    """The provenance of a run, and what of it could not be observed, as [{what, why}]."""
    unseen: dict[str, str] = {}
    found = {
        "toolkit": _toolkit(facts.root or project_root(), unseen),
        "node": _node(facts.snapshot, unseen),
        "images": _images(facts, unseen),
        "vllm": _vllm(facts, unseen),
        "model": _model(facts, unseen),
        "kv_cache": _observed(facts, "cache_config", "the configuration of the KV cache", unseen),
        "slo": facts.slo,
        "workload": facts.workload,
        "seed": facts.seed,
        "definitions": facts.definitions,
        "selfcheck": facts.selfcheck,
        "metrics_schema": _schema(facts.metrics_schema, unseen),
    }
    for name in ("slo", "workload", "seed", "definitions", "selfcheck"):
        if found[name] is None:
            unseen[name] = "the run did not tell it"
    return _plain(found), [{"what": what, "why": why} for what, why in unseen.items()]


def digest(value: Any) -> str:
    """SHA-256 over canonical JSON: keys sorted, no spaces, UTF-8."""
    text = json.dumps(_plain(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _plain(value: Any) -> Any:
    """Only what JSON knows: out of Ansible comes text of a class of its own."""
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return value if value is None or isinstance(value, bool | int | float) else str(value)


def _toolkit(root: Path, unseen: dict[str, str]) -> dict[str, Any]:
    try:
        version = importlib.metadata.version("vllm-node")
    except importlib.metadata.PackageNotFoundError:
        version = None
        unseen["toolkit version"] = "vllm-node is not installed as a package"
    commit = modified = None
    # Only a checkout of its own: installed below somebody else's, git would tell of that.
    if (root / ".git").exists():
        commit = _git(root, "rev-parse", "HEAD")
        status = _git(root, "status", "--porcelain", "--untracked-files=no")
        modified = None if status is None else bool(status)
        if commit is None:
            unseen["toolkit commit"] = "git does not tell it"
    return {"version": version, "commit": commit, "modified": modified}


def _git(root: Path, *words: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *words], capture_output=True, text=True, check=False, timeout=_GIT_LIMIT_S
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _node(snapshot: Mapping[str, Any] | None, unseen: dict[str, str]) -> dict[str, Any] | None:
    if snapshot is None:
        unseen["node"] = "no snapshot of the node was taken"
        return None
    gpu = snapshot.get("gpu") or {}
    driver = gpu.get("driver") or {}
    system, kernel = snapshot.get("os") or {}, snapshot.get("kernel") or {}
    devices = gpu.get("devices")
    found = {
        "snapshot_sha256": digest(snapshot),
        "snapshot_taken_at": snapshot.get("taken_at"),
        "hostname": snapshot.get("hostname"),
        "os": system.get("name") or system.get("id"),
        "kernel": kernel.get("release"),
        "arch": kernel.get("arch"),
        "podman": (snapshot.get("podman") or {}).get("version"),
        "driver": driver.get("loaded") or driver.get("smi"),
        "cuda": driver.get("cuda"),
        "gpus": None if devices is None else [_gpu(one) for one in devices],
        "cpus": (snapshot.get("cpu") or {}).get("count"),
        "memory_bytes": (snapshot.get("memory") or {}).get("total_bytes"),
    }
    for name in ("os", "kernel", "podman", "cpus", "memory_bytes"):
        if found[name] is None:
            unseen[name] = "the snapshot does not hold it"
    for name in ("driver", "gpus"):
        if found[name] is None:
            unseen[name] = str(gpu.get("error") or "the snapshot does not hold it")
    for one in snapshot.get("unseen") or []:
        unseen.setdefault(f"snapshot: {one['what']}", str(one["why"]))
    return found


def _gpu(device: Mapping[str, Any]) -> dict[str, Any]:
    kept = ("index", "name", "uuid", "memory_total_bytes", "mig_mode", "ecc_mode", "persistence")
    return {key: device.get(key) for key in kept}


def _images(facts: Facts, unseen: dict[str, str]) -> dict[str, Any]:
    lock = facts.lock
    locked = (
        None if lock is None else {name: f"{one.get('repository')}@{one.get('digest')}" for name, one in lock.items()}
    )
    if locked is None:
        unseen["image lock"] = "the run was not given it"
    running = _observed(facts, "image", "the image that runs", unseen)
    name = str((facts.instance or {}).get("image") or "vllm")
    wanted = ((lock or {}).get(name) or {}).get("digest")
    seen = (running or {}).get("digest")
    same = (
        None if wanted is None or seen is None else wanted == seen or wanted in ((running or {}).get("digests") or [])
    )
    return {"locked": locked, "running": running, "running_is_locked": same}


def _vllm(facts: Facts, unseen: dict[str, str]) -> dict[str, Any]:
    command = _observed(facts, "command", "the command line that runs", unseen)
    instance = facts.instance or {}
    if facts.instance is None:
        unseen["origin of flags"] = "the inventory's entry of the instance was not given"
    unseen["other flags"] = _VLLM_DEFAULTS
    role, origins = flags.role_args(instance, facts.lock, facts.snapshot)
    return {
        "version": _observed(facts, "version", "vLLM's version", unseen),
        "started_at": _observed(facts, "started_at", "the start of the container", unseen),
        "max_model_len": _observed(facts, "max_model_len", "the longest context", unseen),
        **flags.effective(
            command,
            inventory=instance.get("args") or {},
            role=facts.role_args or role,
            origins=origins,
        ),
    }


def _model(facts: Facts, unseen: dict[str, str]) -> dict[str, Any]:
    seen = (facts.observed or {}).get("model") or {}
    found: dict[str, Any] = {
        "path": (facts.instance or {}).get("model") or seen.get("path"),
        "facts": seen.get("facts"),
        "identity": None,
    }
    if facts.manifest_sha256:
        found["identity"] = {"sha256": facts.manifest_sha256, "of": "manifest", "how": "measured"}
    elif seen.get("files"):
        # Names and sizes tell two releases of a model apart, but not a file that was changed in place.
        told = {"files": seen["files"], "config_sha256": seen.get("config_sha256")}
        found["identity"] = {
            "sha256": digest(told),
            "of": "file names, file sizes and config.json",
            "how": "inferred",
            "config_sha256": seen.get("config_sha256"),
            "files": len(seen["files"]),
            "bytes": sum(seen["files"].values()),
        }
    else:
        unseen["model identity"] = _why(facts, "model")
    return found


def _observed(facts: Facts, name: str, words: str, unseen: dict[str, str]) -> Any:
    value = (facts.observed or {}).get(name)
    if value is None:
        unseen[words] = _why(facts, name)
    return value


def _why(facts: Facts, name: str) -> str:
    if facts.observed is None:
        return "the instance was not looked at"
    told = {one["what"]: one["why"] for one in facts.observed.get("unseen") or []}
    return str(told.get(name, "the instance does not tell it"))


def _schema(endpoints: Sequence[Mapping[str, Any]] | None, unseen: dict[str, str]) -> dict[str, Any] | None:
    if endpoints is None:
        unseen["schema of the metrics"] = "the metrics were not looked at"
        return None
    # Names and types are what a reader needs to see which figures there could be; the digest covers the rest.
    return {
        "sha256": digest(endpoints),
        "endpoints": [
            {
                **{key: one.get(key) for key in ("job", "instance", "state", "error", "version")},
                "metrics": {name: said.get("type") for name, said in (one.get("metrics") or {}).items()},
            }
            for one in endpoints
        ],
    }
