"""What /proc, /sys, systemd, ss and the watched folders tell."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.node_code import utils
from vllm_node.clock import skew_s

system = utils("snapshot_system")
units = utils("snapshot_units")
ports = utils("snapshot_ports")
files = utils("snapshot_files")
host_code = utils("snapshot_host")


def write(root: Path, path: str, content: str | bytes = "") -> None:
    place = root / path.lstrip("/")
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(content.encode() if isinstance(content, str) else content)


def test_os_release() -> None:
    text = 'NAME="R"\nID="rhel"\nID_LIKE="fedora centos"\nVERSION_ID=9.6\nPRETTY_NAME=\'RHEL 9.6 (Plow)\'\n'
    assert system.os_release(text) == {
        "id": "rhel",
        "id_like": ["fedora", "centos"],
        "version_id": "9.6",
        "name": "RHEL 9.6 (Plow)",
    }
    assert system.os_release(None)["id"] is None


def test_cgroup_versions(tmp_path: Path) -> None:
    host = host_code.Host(root=str(tmp_path))
    assert system.cgroup(host)["version"] is None
    write(tmp_path, "/sys/fs/cgroup/memory/tasks")
    assert system.cgroup(host) == {"version": 1, "controllers": []}
    write(tmp_path, "/sys/fs/cgroup/cgroup.controllers", "pids cpu\n")
    assert system.cgroup(host) == {"version": 2, "controllers": ["cpu", "pids"]}


def test_selinux_modes(tmp_path: Path) -> None:
    host = host_code.Host(root=str(tmp_path))
    assert system.selinux(host)["mode"] is None
    write(tmp_path, "/etc/selinux/config")
    assert system.selinux(host)["mode"] == "disabled"
    write(tmp_path, "/sys/fs/selinux/enforce", "0")
    assert system.selinux(host) == {"mode": "permissive", "booleans": {}}
    write(tmp_path, "/sys/fs/selinux/enforce", "1")
    write(tmp_path, "/sys/fs/selinux/booleans/container_use_xserver_devices", "1 0")
    write(tmp_path, "/sys/fs/selinux/booleans/virt_use_nfs", "0 1")
    assert system.selinux(host) == {
        "mode": "enforcing",
        "booleans": {"container_use_xserver_devices": True, "virt_use_nfs": False},
    }


def test_secure_boot(tmp_path: Path) -> None:
    host = host_code.Host(root=str(tmp_path))
    assert system.secure_boot(host) is False
    (tmp_path / "sys/firmware/efi").mkdir(parents=True)
    assert system.secure_boot(host) is None
    assert host.unseen_list()[0]["what"] == "secure_boot"
    variable = "/sys/firmware/efi/efivars/SecureBoot-8be4df61"
    write(tmp_path, variable, b"\x06\x00\x00\x00\x01")
    assert system.secure_boot(host) is True
    write(tmp_path, variable, b"\x06\x00\x00\x00\x00")
    assert system.secure_boot(host) is False


def test_memory_and_swap() -> None:
    assert system.memory("MemTotal:       1000 kB\nMemAvailable:    10 kB\n") == {
        "total_bytes": 1_024_000,
        "available_bytes": 10_240,
    }
    assert system.memory(None)["total_bytes"] is None
    assert system.swap("Filename Type Size Used Priority\n/dev/zram0 partition 8 0 100\n") == [
        {"name": "/dev/zram0", "type": "partition", "size_bytes": 8192}
    ]
    assert system.swap(None) == []


MOUNTS = """22 1 8:2 / / rw,relatime shared:1 - xfs /dev/sda2 rw,seclabel
23 22 0:5 / /proc rw - proc proc rw
30 22 0:44 / /srv/my\\040models ro,relatime shared:9 master:1 - nfs4 nas:/models ro,vers=4.2
31 30 0:45 / /srv/my\\040models/deep rw - xfs /dev/sdb rw
broken line
"""


def test_mounts() -> None:
    found = system.mounts(MOUNTS)
    assert [mount["target"] for mount in found] == ["/", "/srv/my models", "/srv/my models/deep"]
    assert found[1]["source"] == "nas:/models"
    assert found[1]["fstype"] == "nfs4"
    assert "vers=4.2" in found[1]["options"]


@pytest.mark.parametrize(
    ("path", "target"),
    [
        ("/srv/my models/llama", "/srv/my models"),
        ("/srv/my models", "/srv/my models"),
        ("/srv/my models/deep/x", "/srv/my models/deep"),
        ("/srv/my models-2", "/"),
        ("/", "/"),
    ],
)
def test_the_mount_of_a_path_is_found_by_name_alone(path: str, target: str) -> None:
    assert system.mount_of(path, system.mounts(MOUNTS))["target"] == target


def test_next_boot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = host_code.Host(root=str(tmp_path))
    assert system.probe_kernel(host)["next_boot"] is None
    write(tmp_path, "/usr/sbin/grubby")
    (tmp_path / "usr/sbin/grubby").chmod(0o755)
    answer = host_code.Answer(0, "/boot/vmlinuz-5.14.0-1.el9\n", "", None)
    monkeypatch.setattr(host, "run", lambda *argv: answer)
    assert system.probe_kernel(host)["next_boot_has_nvidia"] is None
    write(tmp_path, "/lib/modules/5.14.0-1.el9/modules.dep", "kernel/fs/xfs.ko:\n")
    assert system.probe_kernel(host)["next_boot_has_nvidia"] is False
    write(tmp_path, "/lib/modules/5.14.0-1.el9/modules.dep", "extra/nvidia.ko.xz: a\n")
    found = system.probe_kernel(host)
    assert (found["next_boot"], found["next_boot_has_nvidia"]) == ("5.14.0-1.el9", True)


SHOW = """Id=nvidia-cdi-refresh.service
LoadState=loaded
ActiveState=failed
SubState=failed
Result=exit-code
FragmentPath=/usr/lib/systemd/system/nvidia-cdi-refresh.service
After=sysinit.target multi-user.target

Id=kubelet.service
LoadState=not-found
ActiveState=inactive

Id=vllm-a.service
LoadState=not-found
ActiveState=active
SubState=running

Id=vllm-b.service
LoadState=loaded
ActiveState=inactive
SubState=dead
SourcePath=/etc/containers/systemd/vllm-b.container
FragmentPath=/run/systemd/generator/vllm-b.service

Id=prometheus.service
LoadState=not-found
ActiveState=inactive
"""


def test_units(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = host_code.Host(root=str(tmp_path))
    write(tmp_path, "/etc/containers/systemd/vllm-b.container")
    asked: list[tuple[str, ...]] = []

    def run(*argv: str) -> Any:
        asked.append(argv)
        return host_code.Answer(
            0, SHOW if argv[1] == "show" else "\u25cf x.service loaded failed failed X\n", "", None
        )

    monkeypatch.setattr(host, "run", run)
    found = units.probe(host)
    assert "vllm-b.service" in asked[0]
    assert found["failed"] == ["x.service"]
    assert [(unit["name"], unit["active"]) for unit in found["toolkit"]] == [
        ("vllm-a.service", "active"),
        ("vllm-b.service", "inactive"),
    ]
    assert found["toolkit"][1]["unit_file"] == "/etc/containers/systemd/vllm-b.container"
    assert list(found["watched"]) == ["nvidia-cdi-refresh.service"]
    assert "multi-user.target" in found["watched"]["nvidia-cdi-refresh.service"]["after"]


def test_units_without_systemd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = host_code.Host(root=str(tmp_path))
    monkeypatch.setattr(host, "run", lambda *argv: host_code.Answer(1, "", "Failed to connect to bus", None))
    assert units.probe(host) is None
    assert host.unseen_list() == [{"what": "units", "why": "exit code 1: Failed to connect to bus"}]


SS = """tcp   LISTEN 0      128          0.0.0.0:22         0.0.0.0:*    users:(("sshd",pid=3,fd=3))
tcp   LISTEN 0      4096   [::]:9090   [::]:*    users:(("systemd",pid=1,fd=9),("cockpit",pid=5,fd=3))
udp   UNCONN 0      0      127.0.0.53%lo:53         0.0.0.0:*
tcp   LISTEN 0      5                  *:8000            *:*
nonsense
"""


def test_ports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "/proc/3/cgroup", "0::/system.slice/sshd.service\n")
    host = host_code.Host(root=str(tmp_path))
    monkeypatch.setattr(host, "run", lambda *argv: host_code.Answer(0, SS, "", None))
    found = {(row["protocol"], row["port"]): row for row in ports.probe(host)}
    assert found["tcp", 22]["unit"] == "sshd.service"
    assert found["tcp", 22]["process"] == "sshd"
    assert (found["tcp", 9090]["address"], found["tcp", 9090]["pid"]) == ("::", 1)
    assert (found["udp", 53]["address"], found["udp", 53]["pid"]) == ("127.0.0.53", None)
    assert found["tcp", 8000]["address"] == "*"
    assert len(found) == 4


@given(st.text())
def test_garbage_breaks_no_parser(text: str) -> None:
    ports.ports_from_ss(text)
    units.units_from_show(text)
    units.failed_from_list(text)
    system.os_release(text)
    system.mounts(text)
    system.memory(text)
    system.swap(text)


def test_fingerprints(tmp_path: Path) -> None:
    root = str(tmp_path)
    assert files.fingerprints(root) == {}
    write(tmp_path, "/etc/hosts", "a")
    write(tmp_path, "/etc/systemd/system/x.service", "b")
    (tmp_path / "etc/systemd/system/a.wants").mkdir()
    (tmp_path / "etc/systemd/system/a.wants/x.service").symlink_to("../x.service")
    write(tmp_path, "/etc/other", "not watched")
    first = files.fingerprints(root)
    assert set(first) == {
        "/etc/hosts",
        "/etc/systemd/system",
        "/etc/systemd/system/x.service",
        "/etc/systemd/system/a.wants",
        "/etc/systemd/system/a.wants/x.service",
    }
    assert first["/etc/systemd/system/a.wants/x.service"] == "-> ../x.service"
    assert first["/etc/systemd/system"].startswith("dir ")
    assert files.installed(first, ("/etc/systemd/system",)) == [
        "/etc/systemd/system/a.wants/x.service",
        "/etc/systemd/system/x.service",
    ]
    (tmp_path / "etc/hosts").chmod(0o600)
    write(tmp_path, "/etc/systemd/system/x.service", "c")
    second = files.fingerprints(root)
    assert {path for path in first if first[path] != second[path]} == {
        "/etc/hosts",
        "/etc/systemd/system/x.service",
    }


def test_a_large_file_is_not_read(tmp_path: Path) -> None:
    place = tmp_path / "usr/local/bin/large"
    write(tmp_path, "/usr/local/bin/large")
    with place.open("r+b") as stream:
        stream.truncate(1 << 40)
    assert files.fingerprints(str(tmp_path))["/usr/local/bin/large"].startswith("size:1099511627776 ")


def test_a_path_that_is_not_there_yet_counts_for_the_folder_above(tmp_path: Path) -> None:
    assert files.disk(str(tmp_path / "a/b/c"))["total_bytes"] == files.disk(str(tmp_path))["total_bytes"]
    assert files.disk(str(tmp_path / "a/b/c"))["real_path"] == str(tmp_path)


@pytest.mark.parametrize(
    ("node", "expected"), [(100.0, 0.0), (100.4, 0.0), (101.0, 0.0), (90.0, -10.0), (131.5, 30.5)]
)
def test_skew_counts_only_beyond_question_and_answer(node: float, expected: float) -> None:
    assert skew_s(node, 100.0, 101.0) == expected
