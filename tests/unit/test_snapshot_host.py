"""Time limits: nothing that hangs keeps a snapshot waiting, and what is missed is named."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.unit.node_code import module, utils

host_code = utils("snapshot_host")
Host = host_code.Host
node_snapshot = module()


def hang() -> None:
    time.sleep(60)


def test_a_command_that_answers() -> None:
    answer = Host().run("sh", "-c", "echo out; echo err >&2; exit 3")
    assert (answer.rc, answer.out, answer.err, answer.ok) == (3, "out\n", "err\n", False)
    assert answer.trouble == "exit code 3: err"


def test_a_command_that_is_not_there() -> None:
    answer = Host().run("no-such-program-here")
    assert answer.rc is None
    assert "no-such-program-here" in answer.trouble


def test_a_command_that_hangs_is_left_at_its_limit() -> None:
    begin = time.monotonic()
    # The second process would hold the pipes open if the first alone were killed.
    answer = Host(time_limit_s=0.3).run("sh", "-c", "sleep 60 & sleep 60")
    assert time.monotonic() - begin < 3
    assert answer.trouble == "sh did not answer within 0.3 s"


def test_a_reading_that_hangs_is_left_behind() -> None:
    begin = time.monotonic()
    stuck, good = host_code.Aside("stuck", hang), host_code.Aside("good", lambda: {"a": [1, None]})
    host_code.collect([stuck, good], begin + 0.5)
    assert time.monotonic() - begin < 3
    assert good.value() == {"a": [1, None]}
    with pytest.raises(RuntimeError, match="dead mount"):
        stuck.value()


def test_a_reading_that_breaks_tells_why() -> None:
    broken = host_code.Aside("broken", lambda: os.statvfs("/no/such/folder"))
    host_code.collect([broken], time.monotonic() + 5)
    with pytest.raises(RuntimeError, match="FileNotFoundError"):
        broken.value()


def test_a_large_answer_comes_whole() -> None:
    aside = host_code.Aside("large", lambda: "x" * 3_000_000)
    host_code.collect([aside], time.monotonic() + 10)
    assert len(aside.value()) == 3_000_000


def test_probes_run_side_by_side_and_fail_alone() -> None:
    host = Host()
    begin = time.monotonic()
    probes = host_code.Probes(host)
    probes.start("good", lambda: 1)
    probes.start("broken", lambda: [][1])
    probes.start("stuck", hang)
    assert probes.results(begin + 0.3) == {"good": 1}
    assert time.monotonic() - begin < 3
    assert [entry["what"] for entry in host.unseen_list()] == ["broken", "stuck"]


ARGUMENTS = {"disks": ["/"], "models": [], "registry": None, "images": None}


def program(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(0o755)


def test_a_whole_snapshot_ends_although_everything_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = (
        "nvidia-smi",
        "podman",
        "systemctl",
        "ss",
        "nft",
        "modinfo",
        "grubby",
        "nvidia-ctk",
        "nv-fabricmanager",
    )
    for name in names:
        program(tmp_path, f"usr/bin/{name}", "exec sleep 60\n")
    monkeypatch.setattr(host_code, "_PATH", f"{tmp_path}/usr/bin:/usr/bin:/bin")
    monkeypatch.setattr(Host, "which", lambda self, name: str(tmp_path / "usr/bin" / name))
    monkeypatch.setattr(utils("snapshot_files"), "disk", lambda path: hang())
    store = tmp_path / "root/var/lib/containers/storage"
    store.mkdir(parents=True)
    (store / "db.sql").write_text("")
    host = Host(time_limit_s=0.5, root=str(tmp_path / "root"))
    begin = time.monotonic()
    found = node_snapshot.take(host, ARGUMENTS)
    assert time.monotonic() - begin < 2.0
    assert found["gpu"]["devices"] is None
    assert found["containers"] is None
    assert found["ports"] is None
    assert found["units"]["failed"] is None
    assert found["disks"][0]["free_bytes"] is None
    missed = {entry["what"]: entry["why"] for entry in found["unseen"]}
    assert {"gpu.devices", "gpu.processes", "containers", "ports", "units", "disks./"} <= set(missed)
    assert missed["gpu.devices"] == "nvidia-smi did not answer within 0.5 s"


def test_a_whole_snapshot_of_an_empty_root(tmp_path: Path) -> None:
    found = node_snapshot.take(Host(root=str(tmp_path)), ARGUMENTS)
    assert found["schema"] == 1
    assert found["podman"] is None
    assert found["containers"] == []
    assert found["gpu"]["pci_gpus"] == 0
    assert found["cgroup"]["version"] is None
    assert found["selinux"]["mode"] is None
    assert found["files"] == {}


def test_models_and_images_of_a_wrong_form_are_passed_over() -> None:
    assert node_snapshot.wanted_models("x") == []
    assert node_snapshot.wanted_models([1, {"name": "a"}, {"name": "b", "model": "org/x"}]) == []
    assert node_snapshot.wanted_models([{"name": "a", "model": "/m/a/"}]) == [{"name": "a", "path": "/m/a"}]
    assert node_snapshot.wanted_images(["x"]) == []
    assert node_snapshot.wanted_images({"a": "x", "b": {"repository": "r/x"}}) == [
        {"name": "b", "repository": "r/x", "digest": None}
    ]


def test_the_first_snapshot_is_kept_once(tmp_path: Path) -> None:
    place = tmp_path / "state/as-found.json"
    assert node_snapshot.keep({"a": 1}, str(place)) is True
    assert node_snapshot.keep({"a": 2}, str(place)) is False
    assert place.read_text() == '{\n "a": 1\n}'
    assert place.stat().st_mode & 0o777 == 0o600
    assert list(place.parent.iterdir()) == [place]
