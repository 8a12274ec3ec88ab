"""CDI specs and the small YAML reader behind them."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.node_code import utils

cdi = utils("snapshot_cdi")
reader = utils("snapshot_yaml")

SPEC = """---
# a comment
cdiVersion: 0.5.0
containerEdits:
  deviceNodes:
  - path: /dev/nvidiactl
  - hostPath: /dev/host-uvm
    path: /dev/nvidia-uvm
  env:
  - NVIDIA_VISIBLE_DEVICES=void
  hooks:
  - args:
    - nvidia-cdi-hook
    - update-ldcache
    hookName: createContainer
    path: /usr/bin/nvidia-cdi-hook
  mounts:
  - containerPath: /usr/lib64/libcuda.so.570.86.15
    hostPath: /usr/lib64/libcuda.so.570.86.15
    options: [ro, nosuid]
devices:
- containerEdits:
    deviceNodes:
    - path: /dev/nvidia0
  name: "0"
-   containerEdits:
        deviceNodes:
        -   path: /dev/nvidia0
    name: GPU-1
kind: nvidia.com/gpu
"""


def found(text: str, path: str = "/etc/cdi/x.yaml", missing: tuple[str, ...] = ()) -> dict[str, Any]:
    result: dict[str, Any] = cdi.spec(path, text, lambda name: name not in missing)
    return result


def test_a_spec_is_read() -> None:
    assert found(SPEC) == {
        "path": "/etc/cdi/x.yaml",
        "cdi_version": "0.5.0",
        "kind": "nvidia.com/gpu",
        "devices": ["0", "GPU-1"],
        "driver_versions": ["570.86.15"],
        "missing_paths": [],
        "error": None,
    }


def test_json_and_yaml_say_the_same() -> None:
    as_json = json.dumps(yaml.safe_load(SPEC))
    assert {**found(as_json, "/etc/cdi/x.json"), "path": ""} == {**found(SPEC), "path": ""}


def test_missing_paths_of_nodes_mounts_and_hooks() -> None:
    gone = ("/dev/nvidia0", "/dev/host-uvm", "/usr/bin/nvidia-cdi-hook", "/usr/lib64/libcuda.so.570.86.15")
    assert found(SPEC, missing=gone)["missing_paths"] == sorted(gone)
    # the container's own path of a node that has another one on the host
    assert found(SPEC, missing=("/dev/nvidia-uvm",))["missing_paths"] == []


@pytest.mark.parametrize(
    ("text", "path"),
    [
        (None, "x.yaml"),
        ("", "x.yaml"),
        ("just words", "x.yaml"),
        ("a: [1, 2", "x.yaml"),
        ("kind: nvidia.com/gpu\n  bad: indent", "x.yaml"),
        ("{", "x.json"),
        ("[1]", "x.json"),
        ('{"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": "all"}', "x.json"),
        ("kind: nvidia.com/gpu", "x.yaml"),
    ],
)
def test_a_spec_that_cannot_be_read_says_so(text: Any, path: str) -> None:
    assert found(text, path)["error"]


def test_toolkit_version() -> None:
    assert cdi.toolkit_version("NVIDIA Container Toolkit CLI version 1.17.8\ncommit: f2") == "1.17.8"
    assert cdi.toolkit_version("command not found") is None


@given(st.text())
def test_garbage_gives_an_error_text_or_a_spec(text: str) -> None:
    for path in ("x.yaml", "x.json"):
        result = found(text, path)
        assert result["error"] is None or isinstance(result["error"], str)


@given(st.text(alphabet="ab:-# \n\"'[]{}|&*0.", max_size=60))
def test_garbage_that_looks_like_yaml_raises_nothing_else(text: str) -> None:
    with contextlib.suppress(reader.YamlError):
        reader.read(text)


TEXTS = st.text(alphabet=st.characters(codec="ascii", exclude_categories=["Cc"]), max_size=12)
KEYS = st.from_regex(r"[A-Za-z_][A-Za-z0-9_.-]{0,8}", fullmatch=True)
TREES = st.recursive(
    TEXTS | st.integers(-1000, 10**9) | st.booleans() | st.none(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=15,
)


@given(st.dictionaries(KEYS, TREES, min_size=1, max_size=4))
def test_what_the_reader_reads_is_what_yaml_means(tree: dict[str, Any]) -> None:
    """It may refuse, but it never reads something else than a full YAML parser does."""
    for options in ({"default_flow_style": False, "width": 10_000}, {"width": 10_000}, {}):
        text = yaml.safe_dump(tree, **options)  # type: ignore[call-overload]
        try:
            value = reader.read(text)
        except reader.YamlError:
            continue
        assert value == yaml.safe_load(text)


def test_the_form_that_nvidia_ctk_writes_is_never_refused() -> None:
    assert reader.read(SPEC) == yaml.safe_load(SPEC)


@pytest.mark.parametrize(
    "text",
    [
        "a: &x 1",
        "a: *x",
        "a: |\n  text",
        "a: !tag 1",
        "a: 1\n---\nb: 2",
        "a: 1\na: 2",
        "a: 'x",
        "\ta: 1",
        "a: one\n  two",
    ],
)
def test_other_yaml_is_refused_rather_than_misread(text: str) -> None:
    with pytest.raises(reader.YamlError):
        reader.read(text)
