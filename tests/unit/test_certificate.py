"""The certificate of a teardown: what it is compared with, and that only a clean node is called clean."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.unit.factories import changed, snapshot
from vllm_node.certificate import EARLIER, FIRST_SNAPSHOT, NOTHING, Certificate, issue, write

DIGEST = "sha256:" + "0a" * 32


def teardown(**told: Any) -> dict[str, Any]:
    return {"removed": [], "left": [], "kept": [], "as_found": snapshot(), **told}


def certificate(folder: Path, now: dict[str, Any] | None = None, **told: Any) -> Certificate:
    return issue("node-a", teardown(**told), now or snapshot(), folder)


def test_a_node_as_it_was_found_is_clean(tmp_path: Path) -> None:
    issued = certificate(tmp_path)
    assert issued.clean
    assert issued.compared_with == FIRST_SNAPSHOT
    assert issued.summary() == {"clean": True, "left": [], "kept": [], "difference": []}


def test_what_could_not_be_removed_spoils_it_although_nothing_differs(tmp_path: Path) -> None:
    issued = certificate(tmp_path, left=["volume x: in use"])
    assert not issued.clean
    assert issued.summary()["left"] == ["volume x: in use"]


def test_a_difference_spoils_it_and_names_both_sides(tmp_path: Path) -> None:
    now = changed(snapshot(), "sysctl/net.ipv4.ip_forward", "1")
    issued = certificate(tmp_path, now)
    assert not issued.clean
    (line,) = issued.summary()["difference"]
    assert line.startswith("sysctl: net.ipv4.ip_forward: was ")
    assert line.endswith(", is 1")


def test_volumes_and_images_that_are_kept_do_not_spoil_it(tmp_path: Path) -> None:
    reference = f"registry:5000/vllm@{DIGEST}"
    now = changed(snapshot(), "volumes", [*snapshot()["volumes"], {"name": "grafana-data", "labels": {}}])
    image = {"id": "feed", "digests": [reference], "names": [], "size_bytes": 1}
    now = changed(now, "images", [*snapshot()["images"], image])
    kept = [{"kind": "volume", "name": "grafana-data"}, {"kind": "image", "name": reference}]
    issued = certificate(tmp_path, now, kept=kept)
    assert issued.clean
    assert issued.kept == ("volume grafana-data", f"image {reference}")
    assert not certificate(tmp_path, now).clean
    assert not certificate(tmp_path, now, kept=kept[:1]).clean


def test_a_second_teardown_is_held_against_the_first_ones_snapshot(tmp_path: Path) -> None:
    found = changed(snapshot(), "links", ["lo", "eth7"])
    write(certificate(tmp_path, found, as_found=found), tmp_path)
    again = certificate(tmp_path, found, as_found=None)
    assert (again.clean, again.compared_with) == (True, EARLIER)
    moved = certificate(tmp_path, snapshot(), as_found=None)
    assert not moved.clean


def test_a_node_that_was_installed_anew_under_the_same_name_is_not_held_against_the_one_before(tmp_path: Path) -> None:
    found = {**changed(snapshot(), "links", ["lo", "eth7"]), "machine_id": "a"}
    write(certificate(tmp_path, found, as_found=found), tmp_path)
    new = {**snapshot(), "machine_id": "b"}
    assert certificate(tmp_path, new, as_found=None).compared_with == NOTHING
    assert certificate(tmp_path, {**new, "machine_id": "a"}, as_found=None).compared_with == EARLIER


def test_a_third_one_still_knows_how_the_node_was_found(tmp_path: Path) -> None:
    found = changed(snapshot(), "links", ["lo", "eth7"])
    for as_found in (found, None):
        write(certificate(tmp_path, found, as_found=as_found), tmp_path)
    assert certificate(tmp_path, found, as_found=None).compared_with == EARLIER


OURS: list[tuple[str, Any]] = [
    ("units/failed", ["vllm-chat.service"]),
    ("units/installed", ["/etc/containers/systemd/vllm-chat.container"]),
    ("units/toolkit", [{"name": "gpu-cdi-ready.service", "load": "loaded", "active": "active"}]),
    ("containers", [{"name": "x", "image": "y", "state": "exited", "labels": {"io.vllm-node.component": "vllm"}}]),
    ("files", {"/etc/systemd/system/vllm-node.target": "sha256:00 0644 0 0"}),
]


@pytest.mark.parametrize(("path", "value"), OURS)
def test_without_any_record_what_carries_our_names_is_left_over(tmp_path: Path, path: str, value: Any) -> None:
    issued = certificate(tmp_path, changed(snapshot(), path, value), as_found=None)
    assert issued.compared_with == NOTHING
    assert not issued.clean


FOREIGN: list[tuple[str, Any]] = [
    ("units/failed", ["kubelet.service"]),
    ("units/installed", ["/etc/containers/systemd/other.container"]),
    ("containers", [{"name": "x", "image": "y", "state": "running", "labels": None}]),
    ("files", {"/etc/hosts": "sha256:00 0644 0 0"}),
]


@pytest.mark.parametrize(("path", "value"), FOREIGN)
def test_without_any_record_other_peoples_things_are_none_of_our_business(
    tmp_path: Path, path: str, value: Any
) -> None:
    assert certificate(tmp_path, changed(snapshot(), path, value), as_found=None).clean


@pytest.mark.parametrize("path", ["units", "units/failed", "units/installed", "containers", "files"])
def test_without_any_record_what_could_not_be_seen_is_not_clean(tmp_path: Path, path: str) -> None:
    assert not certificate(tmp_path, changed(snapshot(), path, None), as_found=None).clean


def test_a_certificate_over_nothing_is_not_compared_with(tmp_path: Path) -> None:
    write(certificate(tmp_path, as_found=None), tmp_path)
    assert certificate(tmp_path, as_found=None).compared_with == NOTHING


def test_both_files_are_written_and_say_the_same(tmp_path: Path) -> None:
    folder = tmp_path / "reports/node-a"
    now = changed(snapshot(), "links", ["lo", "cni0"])
    as_json, page = write(certificate(folder, now, left=["image vllm: in use"]), folder)
    document = json.loads(as_json.read_text())
    assert document["clean"] is False
    assert document["now"]["links"] == ["lo", "cni0"]
    assert document["as_found"]["links"] == snapshot()["links"]
    told = page.read_text()
    for word in ("Certificate for node-a", "NOT clean", "image vllm: in use", "| links | cni0 | (absent) | present |"):
        assert word in told
    assert sorted(path.name for path in folder.iterdir()) == ["certificate.json", "certificate.md"]


def test_the_page_of_a_clean_node_has_no_empty_headings(tmp_path: Path) -> None:
    _, page = write(certificate(tmp_path), tmp_path)
    told = page.read_text()
    assert "Clean: the node is as it was found." in told
    assert "##" not in told
