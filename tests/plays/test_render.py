"""Rendering: what is written, what is withheld, and what a broken input is told."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.unit.node_code import ROOT
from vllm_node import render as module
from vllm_node.exit_codes import ExitCode
from vllm_node.render import RenderError, judge_inputs, render
from vllm_node.staging import Staged

UNIT = "/etc/containers/systemd/a.container"
GOOD = {
    UNIT: "[Container]\nImage=r.example/a@sha256:1\n",
    "/etc/vllm-node/prometheus/prometheus.yml": "global: {}\n",
    "/etc/vllm-node/dcgm-exporter/counters.csv": "# head\nDCGM_FI_DEV_GPU_TEMP, gauge, Degrees.\n",
    "/etc/vllm-node/grafana/dashboards/node.json": "{}",
    "/etc/vllm-node/vllm/a/healthcheck.py": "print('ok')\n",
}


def staged(texts: dict[str, str], mode: str = "0644") -> Staged:
    files = [{"path": path, "content": text, "mode": mode} for path, text in texts.items()]
    return Staged(files=files, secrets=[{"name": "password", "value": "s3cret"}])


def call(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "vllm_node", "render", *words],
        cwd=ROOT,
        env={**os.environ, "VLLM_NODE_DEBUG": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_the_example_inventory_is_rendered_without_its_vault(tmp_path: Path) -> None:
    done = call("-i", "inventories/example", "--output", tmp_path / "out", "--json")
    assert done.returncode == ExitCode.OK, done.stdout + done.stderr
    hosts = json.loads(done.stdout)["hosts"]
    assert set(hosts) == {"gpu1", "gpu2"}
    told = hosts["gpu2"]["rendered"]
    assert "/etc/containers/systemd/vllm-draft.container" in told["written"]
    assert told["withheld"] == ["/etc/containers/auth-vllm-node.json", "/etc/vllm-node/gateway/secrets/clients.json"]
    assert any("grafana_admin_password" in line for line in told["not_validated"])
    (empty,) = hosts["gpu2"]["findings"]
    assert (empty["id"], empty["level"]) == ("lock.placeholder", "warn")
    assert "a bring-up will stop here" in empty["seen"]
    unit = (tmp_path / "out/gpu2/etc/containers/systemd/vllm-draft.container").read_text()
    assert "AddDevice=nvidia.com/gpu=4\n" in unit
    for path in told["written"]:
        assert (tmp_path / "out/gpu2" / path.lstrip("/")).is_file(), path


def test_no_secret_is_written_even_when_it_is_known(tmp_path: Path) -> None:
    secrets = {"container_host_registry_password": "s3cret-one", "grafana_admin_password": "s3cret-two"}
    vault = {"vault_registry_password": "s3cret-three", "vault_grafana_admin_password": "s3cret-four"}
    nested = {"prometheus_remote_write": [{"name": "s", "url": "https://s.example", "token": "s3cret-five"}]}
    for given in (secrets, vault, nested):
        done = call("-i", "inventories/example", "--output", tmp_path / "out", "-e", json.dumps(given))
        assert done.returncode == ExitCode.OK, done.stdout + done.stderr
        written = "".join(path.read_text() for path in (tmp_path / "out").rglob("*") if path.is_file())
        assert "Image=" in written
        assert "s3cret" not in written + done.stdout + done.stderr


def test_wrong_variables_are_told_at_once_and_nothing_is_written(tmp_path: Path) -> None:
    lock = {name: {"repository": f"r.example/{name}", "tag": "v1"} for name in ("vllm", "prometheus")}
    wrong = {"images_lock": lock, "prometheus_prot": 1, "grafana_port": 9091}
    words = ("-i", "inventories/example", "-l", "gpu1", "--json", "-e", json.dumps(wrong))
    done = call("--output", tmp_path / "out", *words)
    assert done.returncode == ExitCode.VALIDATION
    found = {each["id"] for each in json.loads(done.stdout)["hosts"]["gpu1"]["findings"] if each["level"] == "fail"}
    assert {"lock.digest", "lock.name", "input.unknown", "port.shared"} <= found
    assert not (tmp_path / "out").exists()


def test_a_secret_that_nobody_defines_is_still_missing() -> None:
    judged = judge_inputs("gpu1", {"container_host_registry_address": "r.example"}, lambda value: value, ROOT / "roles")
    missing = [each.seen for each in judged.findings if each.id == "input.missing"]
    assert any("grafana_admin_password" in seen for seen in missing)


def test_only_files_that_others_may_read_are_written(tmp_path: Path) -> None:
    parts = [staged(GOOD), staged({"/etc/containers/auth.json": "{}"}, mode="0600")]
    done = render("gpu1", tmp_path / "gpu1", parts)
    assert done.findings == []
    assert done.written == sorted(GOOD)
    assert done.withheld == ["/etc/containers/auth.json"]
    assert not (tmp_path / "gpu1/etc/containers/auth.json").exists()


def test_a_second_rendering_leaves_nothing_of_the_first(tmp_path: Path) -> None:
    render("gpu1", tmp_path / "gpu1", [staged(GOOD)])
    render("gpu1", tmp_path / "gpu1", [staged({"/etc/a.json": "{}"})])
    assert [path.name for path in (tmp_path / "gpu1").rglob("*") if path.is_file()] == [module.MARK, "a.json"]


def test_a_folder_of_somebody_else_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "diary.txt").write_text("mine")
    with pytest.raises(RenderError, match="give another --output"):
        render("gpu1", tmp_path, [staged(GOOD)])
    assert (tmp_path / "diary.txt").exists()


@pytest.mark.parametrize(
    ("path", "text", "word"),
    [
        ("/etc/vllm-node/grafana/dashboards/node.json", "{,}", "no JSON"),
        ("/etc/vllm-node/prometheus/prometheus.yml", "a: [", "no YAML"),
        ("/etc/vllm-node/dcgm-exporter/counters.csv", "DCGM_FI_DEV_GPU_TEMP, gauge\n", "three columns"),
        ("/etc/vllm-node/vllm/a/healthcheck.py", "match x:\n    case 1: pass\n", "no Python 3.9"),
        (UNIT, "Image=a\n[Container]\n", "line 1 is neither"),
        (UNIT, "[Container]\nImage\n", "line 2 is neither"),
        (UNIT, "# nothing\n", "no section"),
    ],
)
def test_a_broken_file_is_told(tmp_path: Path, path: str, text: str, word: str) -> None:
    done = render("gpu1", tmp_path / "gpu1", [staged({**GOOD, path: text})])
    assert [(each.id, each.host) for each in done.findings] == [("render.syntax", "gpu1")]
    assert path in done.findings[0].seen
    assert word in done.findings[0].seen


def program(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("script", "complaints"),
    [
        ('test -f "$QUADLET_UNIT_DIRS/a.container" && echo ---a.service---', []),
        ("echo 'unsupported key Memory' >&2; echo ---a.service---", ["unsupported key Memory"]),
        ("exit 0", ["a.container gives no a.service"]),
    ],
)
def test_units_are_given_to_the_generator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, complaints: list[str]
) -> None:
    monkeypatch.setattr(module, "_GENERATORS", (str(program(tmp_path / "quadlet", script)),))
    done = render("gpu1", tmp_path / "gpu1", [staged(GOOD)])
    assert [each.seen for each in done.findings if each.id == "render.unit"] == complaints
    assert "1 units, by this machine's Quadlet generator" in done.validated


@pytest.mark.parametrize(("code", "findings"), [(0, 0), (1, 1)])
def test_promtool_judges_the_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, findings: int
) -> None:
    program(tmp_path / "promtool", f'test -f "$4" || exit 9\necho bad >&2\nexit {code}')
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    done = render("gpu1", tmp_path / "gpu1", [staged(GOOD)])
    told: list[Any] = [each.seen for each in done.findings if each.id == "render.prometheus"]
    assert told == ["bad"] * findings


def test_what_this_machine_cannot_validate_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_GENERATORS", ())
    monkeypatch.setenv("PATH", str(tmp_path))
    told = "\n".join(render("gpu1", tmp_path / "gpu1", [staged(GOOD)]).not_validated)
    for word in ("Quadlet generator", "promtool", "podman secrets: password"):
        assert word in told
