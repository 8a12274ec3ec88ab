"""Whether a model folder is complete: configuration, every shard, tokenizer, the files its own code needs."""

from __future__ import annotations

import json
import os
from typing import Any

from ansible.module_utils import snapshot_safetensors, snapshot_shape, snapshot_tree, snapshot_weights

_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "tekken.json", "spiece.model", "vocab.txt", "vocab.json")
_POINTER = b"version https://git-lfs"
_MOST_PROBLEMS = 20


def inspect(name: str, path: str, most_problems: int = _MOST_PROBLEMS) -> dict[str, Any]:
    """A model as the snapshot shows it, with as many problems as a snapshot should hold.

    May hang on a dead mount: call it in a process that can be left behind.
    """
    found: dict[str, Any] = {
        "name": name,
        "path": path,
        "exists": os.path.exists(path),
        "bytes": None,
        "architectures": [],
        "auto_map": False,
        "own_code": [],
        "auto_map_missing": [],
        "vocabulary_files": [],
        "config": None,
        "weights": None,
        "problems": [],
    }
    if not found["exists"]:
        return found
    if os.path.isfile(path):
        found["bytes"] = os.path.getsize(path)
        found["problems"] = _single_file(path)
        return found
    try:
        names = sorted(os.listdir(path))
    except OSError as error:
        found["problems"] = [f"the folder cannot be read: {error.strerror}"]
        return found
    found["bytes"] = sum(_size(os.path.join(path, each)) or 0 for each in names)
    found["vocabulary_files"] = _vocabulary(path, names)
    problems = _config(path, names, found) + _weights(path, names, found) + _tokenizer(path, names)
    problems += [f"{each} is a download that has not ended" for each in snapshot_tree.unfinished(path)]
    if len(problems) > most_problems:
        problems = [*problems[:most_problems], f"and {len(problems) - most_problems} more"]
    found["problems"] = problems
    return found


def _size(path: str) -> int | None:
    try:
        return os.path.getsize(path) if os.path.isfile(path) else None
    except OSError:
        return None


def _head(path: str, length: int) -> bytes:
    with open(path, "rb") as stream:
        return stream.read(length)


def _single_file(path: str) -> list[str]:
    try:
        head = _head(path, len(_POINTER))
    except OSError as error:
        return [f"{os.path.basename(path)} cannot be read: {error.strerror}"]
    if head == _POINTER:
        return [f"{os.path.basename(path)} is a git-lfs pointer, not the file itself"]
    if path.endswith(".gguf") and not head.startswith(b"GGUF"):
        return [f"{os.path.basename(path)} is no GGUF file"]
    return []


def _json(path: str) -> Any:
    """Content of a JSON file. Raises ValueError with the reason in words."""
    name = os.path.basename(path)
    try:
        data = _head(path, 64 << 20)
    except OSError as error:
        raise ValueError(f"{name} cannot be read: {error.strerror}") from None
    if data.startswith(_POINTER):
        raise ValueError(f"{name} is a git-lfs pointer, not the file itself")
    try:
        return json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{name} is no valid JSON: {error}") from None


def _config(path: str, names: list[str], found: dict[str, Any]) -> list[str]:
    if "config.json" not in names:
        # Mistral's own layout has params.json instead.
        return [] if "params.json" in names else ["config.json is missing"]
    try:
        config = _json(os.path.join(path, "config.json"))
    except ValueError as error:
        return [str(error)]
    if not isinstance(config, dict):
        return ["config.json holds no object"]
    architectures = config.get("architectures")
    found["architectures"] = [str(each) for each in architectures] if isinstance(architectures, list) else []
    maps = [config.get("auto_map")]
    try:
        tokenizer = _json(os.path.join(path, "tokenizer_config.json"))
        maps.append(tokenizer.get("auto_map") if isinstance(tokenizer, dict) else None)
    except ValueError:
        pass
    files = sorted({file for each in maps for file in _code_files(each)})
    found["auto_map"] = any(isinstance(each, dict) and each for each in maps)
    found["own_code"] = files
    found["auto_map_missing"] = [file for file in files if file not in names]
    found["config"] = snapshot_shape.part(config)
    return []


def _code_files(auto_map: Any) -> list[str]:
    """Python files that an auto_map names: "modeling_x.XModel" stands for modeling_x.py."""
    if not isinstance(auto_map, dict):
        return []
    entries: list[Any] = []
    for value in auto_map.values():
        entries += value if isinstance(value, list) else [value]
    # "owner/model--modeling_x.XModel" points into another repository, which is never there offline.
    return [
        entry.split("--")[-1].split(".")[0] + ".py"
        for entry in entries
        if isinstance(entry, str) and "." in entry
    ]


def _weights(path: str, names: list[str], found: dict[str, Any]) -> list[str]:
    shards: dict[str, set[str]] = {}
    problems: list[str] = []
    indices = [name for name in names if name.endswith((".safetensors.index.json", ".bin.index.json"))]
    for name in indices:
        try:
            listed = _json(os.path.join(path, name))["weight_map"].items()
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            problems.append(str(error) if isinstance(error, ValueError) else f"{name} has no weight_map")
            continue
        # A folder may keep the index of a format that was not copied.
        if name.endswith(".bin.index.json") and any(each.endswith(".safetensors") for each in names):
            continue
        for tensor, shard in listed:
            shards.setdefault(str(shard), set()).add(str(tensor))
    loose = {name for name in names if name.endswith((".safetensors", ".gguf"))}
    if not loose:
        loose = {
            name
            for name in names
            if name.endswith((".bin", ".pt")) and name.startswith(("pytorch_model", "consolidated"))
        }
    if not shards and not loose:
        return problems or ["there are no weights (*.safetensors, *.gguf or pytorch_model*.bin)"]
    # What the index names is what is loaded: a folder may hold the same weights once more in another layout.
    counted = {name for name in shards or _one_layout(loose) if name.endswith(".safetensors")}
    tally = snapshot_weights.Tally(_layers(found["config"]))
    whole = bool(counted)
    for shard in sorted({*shards, *loose}):
        tensors, problem = _shard(path, shard, shards.get(shard, set()))
        if problem:
            problems.append(problem)
        if shard in counted:
            whole = whole and problem is None
            if problem is None:
                tally.add(tensors)
    # A part of the weights is no figure at all.
    found["weights"] = tally.result() if whole else None
    return problems


def _one_layout(files: set[str]) -> set[str]:
    """Without Mistral's own layout where the usual one is there as well."""
    usual = {name for name in files if not name.startswith("consolidated")}
    return usual or files


def _layers(config: dict[str, Any] | None) -> int | None:
    text = (config or {}).get("text_config") or config or {}
    layers = text.get("num_hidden_layers")
    return layers if isinstance(layers, int) else None


def _shard(path: str, shard: str, tensors: set[str]) -> tuple[dict[str, Any], str | None]:
    """Tensors of a file of weights, and what is wrong with it; the index places `tensors` there."""
    place = os.path.join(path, shard)
    size = _size(place)
    if size is None:
        return {}, f"shard {shard} is missing"
    if size == 0:
        return {}, f"shard {shard} is empty"
    try:
        if _head(place, len(_POINTER)) == _POINTER:
            return {}, f"shard {shard} is a git-lfs pointer, not the file itself"
        if shard.endswith(".safetensors"):
            there, problem = snapshot_safetensors.inspect(place, size)
            gone = sorted(tensors - set(there))
            if problem is None and gone:
                more = f" and {len(gone) - 1} more" if len(gone) > 1 else ""
                problem = f"lacks tensor {gone[0]}{more}, which the index places there"
            return there, f"shard {shard} {problem}" if problem else None
    except OSError as error:
        return {}, f"shard {shard} cannot be read: {error.strerror}"
    return {}, None


def _tokenizer(path: str, names: list[str]) -> list[str]:
    if any(name.endswith(".gguf") for name in names):
        return []  # a GGUF file holds its tokenizer itself
    present = [
        name
        for name in names
        if name in _TOKENIZERS or name.endswith(".tiktoken") or name.startswith("tokenizer.model")
    ]
    if not present:
        return ["the tokenizer is missing (tokenizer.json, tokenizer.model, tekken.json, vocab.json, ...)"]
    problems = []
    for name in present:
        place = os.path.join(path, name)
        try:
            if not _size(place):
                problems.append(f"{name} is empty")
            elif _head(place, len(_POINTER)) == _POINTER:
                problems.append(f"{name} is a git-lfs pointer, not the file itself")
        except OSError as error:
            problems.append(f"{name} cannot be read: {error.strerror}")
    return problems


def _vocabulary(path: str, names: list[str]) -> list[str]:
    """Names of tiktoken vocabularies in the folder and one level below."""
    found = [name for name in names if name.endswith(".tiktoken")]
    for name in names:
        below = os.path.join(path, name)
        if os.path.isdir(below):
            try:
                found += [f"{name}/{each}" for each in os.listdir(below) if each.endswith(".tiktoken")]
            except OSError:
                continue
    return sorted(found)
