"""Models: there, complete, and with what their own code and file system ask for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from vllm_node.preflight import tables
from vllm_node.preflight.findings import Finding, fail, warn
from vllm_node.preflight.reading import Snapshot, at, gib, listed, mapping, number, rows, text, words
from vllm_node.preflight.start_budget import estimate_s, weights_s
from vllm_node.preflight.wanted import Instance, Wanted

_VOCABULARY = "TIKTOKEN_ENCODINGS_BASE"
# vLLM itself prefetches no more than this share of the memory that is free.
_PREFETCH_SHARE = 0.9


def _pairs(snapshot: Snapshot, wanted: Wanted) -> Iterator[tuple[Instance, Mapping[str, Any]]]:
    found = {text(row, "name"): row for row in rows(snapshot, "models")}
    for instance in wanted.instances:
        if instance.name in found:
            yield instance, found[instance.name]


def path(_: Snapshot, wanted: Wanted) -> Iterator[Finding]:
    """Models are named by a path on the node."""
    for instance in wanted.instances:
        if instance.model is not None and not instance.model.startswith("/"):
            yield fail(
                "model.path",
                f"instance {instance.name} has the model {instance.model}",
                "That is no absolute path; as a name of a public repository it would be fetched from the "
                "internet.",
                "Set model to the folder on the node that holds the model.",
            )


def present(snapshot: Snapshot, wanted: Wanted) -> Iterator[Finding]:
    """The folder is there and whole."""
    reasons = {at(row, "what"): text(row, "why") for row in rows(snapshot, "unseen")}
    for instance, model in _pairs(snapshot, wanted):
        if model.get("exists") is False:
            yield fail(
                "model.missing",
                f"instance {instance.name}: {model.get('path')} does not exist",
                "vLLM has nothing to load.",
                "Copy the model there, mount the model store, or correct model of the instance.",
            )
        elif model.get("exists") is None:
            yield fail(
                "model.unreadable",
                f"instance {instance.name}: {model.get('path')}: "
                f"{reasons.get(f'models.{instance.name}') or 'no answer'}",
                "vLLM would hang there as well.",
                "Mend the mount that holds it (umount -l a dead one).",
            )
        elif words(model, "problems"):
            yield fail(
                "model.incomplete",
                f"instance {instance.name}, {model.get('path')}: {'; '.join(words(model, 'problems'))}",
                "Loading would fail, often only after minutes.",
                "Copy the model again and compare checksums; large files need git-lfs or the hub's own "
                "download.",
            )


def delivery(_: Snapshot, wanted: Wanted) -> Iterator[Finding]:
    """Models that the toolkit is to bring."""
    for problem in wanted.delivery_problems:
        yield fail(
            "model.delivery",
            problem,
            "Without its manifest no node can prove that it serves the model that was meant.",
            "Correct model_store_models, or make the manifest: vllm-node models manifest DIR --output FILE.",
        )


def own_code(snapshot: Snapshot, wanted: Wanted) -> Iterator[Finding]:
    """Models that bring Python code."""
    for instance, model in _pairs(snapshot, wanted):
        if not model.get("auto_map"):
            continue
        gone = words(model, "auto_map_missing")
        if not instance.has_arg("trust-remote-code"):
            yield fail(
                "model.own_code",
                f"instance {instance.name}: config.json of {model.get('path')} names code of its own "
                "(auto_map)",
                "vLLM refuses to run a model's own code unless it is told to.",
                "Read the model's .py files, then set args: {trust-remote-code: true}; if vLLM knows the "
                "architecture "
                "itself, add model.own_code to preflight_ignore instead.",
            )
        elif gone:
            yield fail(
                "model.own_code",
                f"instance {instance.name}: {listed(gone)} named by auto_map is not in {model.get('path')}",
                "Without the file vLLM asks the internet for it.",
                "Copy the .py files of the model as well.",
            )


def vocabulary(snapshot: Snapshot, wanted: Wanted) -> Iterator[Finding]:
    """gpt-oss needs tiktoken's vocabulary files, which are not part of the model."""
    for instance, model in _pairs(snapshot, wanted):
        if not any(name.startswith("GptOss") for name in words(model, "architectures")):
            continue
        files = [name for name in words(model, "vocabulary_files") if "o200k_base" in name]
        if _VOCABULARY not in instance.env:
            yield fail(
                "model.vocabulary",
                f"instance {instance.name}: gpt-oss, and env has no {_VOCABULARY} "
                + (
                    f"(the model's folder has {listed(files)})"
                    if files
                    else "(nor has the folder o200k_base.tiktoken)"
                ),
                "It fetches o200k_base.tiktoken from the internet at its first request, after all the "
                "loading.",
                "Put o200k_base.tiktoken and cl100k_base.tiktoken into the model's folder and set env: "
                f"{{{_VOCABULARY}: "
                "that folder as the container sees it}.",
            )


def file_system(snapshot: Snapshot, wanted: Wanted) -> Iterator[Finding]:
    """Models on a network file system."""
    for instance, model in _pairs(snapshot, wanted):
        kind = text(model, "fstype")
        if kind not in tables.NETWORK_FILE_SYSTEMS:
            continue
        if not instance.has_arg("safetensors-load-strategy"):
            available = number(snapshot, "memory", "available_bytes")
            # Prefetching fills the page cache: it only helps where that holds the whole model.
            strategy = "prefetch" if (number(model, "bytes") or 0) < _PREFETCH_SHARE * (available or 0) else "eager"
            yield warn(
                "model.network_fs",
                f"instance {instance.name}: {model.get('path')} ({gib(number(model, 'bytes') or 0)}) is on "
                f"{kind}",
                "Weights that are mapped from a network file system are read in small pieces: loading can "
                "take an hour.",
                f"Set args: {{safetensors-load-strategy: {strategy}}}, or copy the model to a local disk.",
            )
        booleans = mapping(snapshot, "selinux", "booleans")
        if (
            at(snapshot, "selinux", "mode") == "enforcing"
            and booleans.get("virt_use_nfs") is False
            and "nfs" in kind
        ):
            yield warn(
                "model.selinux_nfs",
                f"instance {instance.name}: {model.get('path')} is on {kind}, and virt_use_nfs is off",
                "Containers may not read NFS mounts, unless they are mounted with a context= that allows it.",
                "setsebool -P virt_use_nfs on, or mount with context=system_u:object_r:container_file_t:s0.",
            )


def start_budget(snapshot: Snapshot, wanted: Wanted) -> Iterator[Finding]:
    """Models that this disk cannot deliver within the time that a start may take."""
    for instance, model in _pairs(snapshot, wanted):
        reading_s, needed_s = weights_s(model), estimate_s(model)
        budget_s = instance.start_budget_s
        if reading_s is None or needed_s is None or needed_s <= budget_s:
            continue
        speed = f"{(number(model, 'read', 'bytes_per_s') or 0) / 1e6:.0f} MB/s"
        yield warn(
            "model.start_budget",
            f"instance {instance.name}: {model.get('path')} ({gib(number(model, 'bytes') or 0)}) is read with "
            f"{speed}, measured just now: {reading_s:.0f} s for all of it; start_budget_s is {budget_s:.0f}",
            "A load that goes well would count as failed before its end.",
            f"Set start_budget_s: {needed_s:.0f} of the instance, or put the model on a faster disk.",
        )


CHECKS = (path, present, delivery, own_code, vocabulary, file_system, start_budget)
