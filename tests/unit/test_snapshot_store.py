"""Speed of a model's disk: measured past the cache, once for each file system, and bounded."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path
from typing import Any

import pytest

from tests.unit.node_code import utils

MIB = 1 << 20


@pytest.fixture
def store() -> Any:
    return utils("snapshot_store")


def sparse(path: Path, size: int = 64 * MIB) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as stream:
        stream.truncate(size)
    return path


def test_the_largest_file_of_weights_is_read(store: Any, tmp_path: Path) -> None:
    sparse(tmp_path / "model-1.safetensors")
    sparse(tmp_path / "model-2.safetensors", 65 * MIB)
    sparse(tmp_path / "optimizer.dat", 99 * MIB)
    assert store.largest(str(tmp_path))[:2] == (str(tmp_path / "model-2.safetensors"), 65 * MIB)
    told = store.speeds([str(tmp_path)])[str(tmp_path)]
    assert told["bytes_per_s"] > MIB
    assert told["past_cache"] in (True, False)


def test_one_file_system_is_measured_once(store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = []

    def speed(place: str, size: int, limit_s: float) -> dict[str, Any]:
        measured.append(place)
        return {"bytes_per_s": 1, "past_cache": True, "why": None}

    monkeypatch.setattr(store, "speed", speed)
    folders = [str(sparse(tmp_path / name / "model.safetensors").parent) for name in ("a", "b")]
    assert list(store.speeds([*folders, folders[0]])) == folders
    assert len(measured) == 1


@pytest.mark.parametrize(("limits", "reads"), [({"limit_s": 0.05}, 2), ({"limit_s": 60, "limit_bytes": 24 * MIB}, 3)])
def test_a_measurement_is_bounded_in_time_and_in_bytes(
    store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limits: dict[str, Any], reads: int
) -> None:
    place = str(sparse(tmp_path / "model.gguf", 4096 * MIB))
    really, done = os.preadv, []

    def slow(*arguments: Any) -> int:
        done.append(arguments)
        time.sleep(0.04)
        return really(*arguments)

    monkeypatch.setattr(os, "preadv", slow)
    told = store.speed(place, 4096 * MIB, **limits)
    # Where the machine is slow, time ends it earlier; bytes end it exactly.
    assert len(done) == reads or ("limit_bytes" not in limits and 1 <= len(done) <= reads)
    assert 0 < told["bytes_per_s"] <= 8 * MIB / 0.04


@pytest.mark.parametrize(
    ("files", "why"),
    [({}, "there are no weights"), ({"model.safetensors": MIB}, "too small to measure by")],
)
def test_what_cannot_be_measured_is_none_and_says_why(
    store: Any, tmp_path: Path, files: dict[str, int], why: str
) -> None:
    for name, size in files.items():
        sparse(tmp_path / name, size)
    told = store.speeds([str(tmp_path), "/nowhere/at/all"])
    assert told[str(tmp_path)]["bytes_per_s"] is None
    assert why in told[str(tmp_path)]["why"]
    assert told["/nowhere/at/all"]["why"] == os.strerror(errno.ENOENT)


def test_a_file_system_that_knows_no_reads_past_the_cache_is_read_and_says_so(
    store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = os.open

    def refusing(path: str, flags: int) -> int:
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "no")
        return opened(path, flags)

    monkeypatch.setattr(os, "open", refusing)
    told = store.speeds([str(sparse(tmp_path / "model.safetensors").parent)])[str(tmp_path)]
    assert told["bytes_per_s"] > MIB
    assert told["past_cache"] is False
    assert "past the cache" in told["why"]
