"""A teardown: its order, what it keeps on purpose, and that nothing which stays is passed over in silence."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.unit.role_code import answers, calls, fast_clock, load, manifest_code, on_path, program, run_module

REFERENCE = "registry:5000/vllm@sha256:00"
THERE = {
    "ps --all --no-trunc": (0, "feed01"),
    "ps --all --filter": (0, "vllm-chat"),
    "volume ls": (0, "vllm-chat-cache\ntheirs"),
    "secret ls": (0, "grafana-admin-password\ntheirs"),
    "image exists": (0, ""),
}


class Node:
    """A node with one instance on it, in a folder; its podman and its systemd answer as the test says."""

    def __init__(self, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.root, self.capsys, self.programs, self.state = root, capsys, root / "bin", root / "state"
        self.module = load("roles/teardown/library/node_teardown.py")
        self.module.STORAGE, self.module.RUNTIME = str(root / "storage"), str(root / "run")
        self.module.processes_of = lambda unit: []
        for folder in ("storage", "run"):
            (root / folder).mkdir()
        self.podman()
        self.systemctl()

    def podman(self, **changed: tuple[int, str]) -> None:
        program(
            self.programs,
            "podman",
            answers({**THERE, **{key.replace("_", " "): value for key, value in changed.items()}}),
        )

    def systemctl(self, *stuck: str) -> None:
        shown = "".join(f"Id={unit}\nActiveState=deactivating\n\n" for unit in stuck)
        program(self.programs, "systemctl", f"[ $1 != show ] || printf '%s' '{shown}'")

    def brought_up(self) -> Any:
        manifest = manifest_code().Manifest.load(str(self.state))
        for path, scope in (("quadlets/vllm-chat.container", "stack"), ("units/gpu-cdi-ready.service", "host")):
            manifest.install(str(self.root / path), b"", 0o644, os.getuid(), os.getgid(), scope)
        manifest.add("volumes", "vllm-chat-cache")
        manifest.add("secrets", "grafana-admin-password")
        manifest.add("units", "vllm-node.target")
        manifest.add_image(REFERENCE, "vllm")
        (self.state / "as-found.json").write_text('{"schema": 1}')
        return manifest

    def down(self, check: bool = False, **more: Any) -> dict[str, Any]:
        arguments = {"state_dir": str(self.state), "target": "vllm-node.target", **more}
        return run_module(self.module, self.capsys, **arguments, _ansible_check_mode=check)

    @property
    def manifest(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.state / "manifest.json").read_text())
        return found

    def lines(self) -> list[str]:
        return [" ".join(call) for call in calls(self.programs)]


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Node:
    on_path(monkeypatch, tmp_path / "bin")
    monkeypatch.setattr("os.fsync", lambda _: None)
    fast_clock(monkeypatch)
    return Node(tmp_path, capsys)


def test_everything_goes_and_the_state_with_it(node: Node) -> None:
    node.brought_up()
    told = node.down()
    assert told["changed"] is True
    assert (told["left"], told["kept"]) == ([], [])
    assert told["as_found"] == {"schema": 1}
    expected = ["container vllm-chat", "volume vllm-chat-cache", "secret grafana-admin-password", "image vllm"]
    assert told["removed"][2:] == expected
    assert sorted(path.name for path in node.root.iterdir()) == ["bin", "storage"]


def test_the_order_leaves_nothing_dangling(node: Node) -> None:
    node.brought_up()
    node.down()
    steps = [
        "systemctl stop --no-block vllm-node.target vllm-chat.service gpu-cdi-ready.service",
        "systemctl disable --quiet vllm-node.target",
        "systemctl daemon-reload",
        "systemctl reset-failed vllm-chat.service",
        "podman rm --force --time=5 vllm-chat",
        "podman volume rm vllm-chat-cache",
        "podman secret rm grafana-admin-password",
        f"podman rmi {REFERENCE}",
    ]
    lines = node.lines()
    assert [line for line in lines if line in steps] == steps


def test_a_target_that_was_not_installed_does_not_keep_others_from_being_stopped(node: Node) -> None:
    node.brought_up()
    program(node.programs, "systemctl", 'case "$*" in stop*vllm-node.target*) exit 5;; esac')
    assert node.down()["left"] == []
    assert "systemctl stop --no-block gpu-cdi-ready.service" in node.lines()


def test_files_go_after_their_services_have_stopped_and_before_systemd_is_reloaded(node: Node) -> None:
    node.brought_up()
    unit, seen = node.root / "quadlets/vllm-chat.container", node.root / "seen"
    program(node.programs, "systemctl", f"[ -e {unit} ] && echo $1 True >> {seen} || echo $1 False >> {seen}")
    node.down()
    lines = seen.read_text().splitlines()
    assert "stop True" in lines
    assert "disable True" in lines
    assert "daemon-reload False" in lines


def test_failures_of_every_unit_are_forgotten_whatever_its_name(node: Node) -> None:
    manifest = node.brought_up()
    manifest.install(str(node.root / "quadlets/grafana.container"), b"", 0o644, os.getuid(), os.getgid(), "stack")
    node.down()
    assert "systemctl reset-failed grafana.service" in node.lines()
    assert "systemctl reset-failed gpu-cdi-ready.service" in node.lines()
    assert "systemctl reset-failed feed01-*" in node.lines()


def test_a_running_pull_is_stopped_too(node: Node) -> None:
    node.brought_up()
    pulls = "[ $1 != list-units ] || echo vllm-node-pull-vllm.service loaded active running x"
    program(node.programs, "systemctl", pulls)
    node.down()
    (stop,) = [line for line in node.lines() if line.startswith("systemctl stop")]
    assert "vllm-node-pull-vllm.service" in stop.split()


def test_what_does_not_stop_in_time_is_killed_and_reported_if_that_does_not_help(node: Node) -> None:
    node.brought_up()
    node.systemctl("vllm-chat.service")
    told = node.down(stop_limit_s=3)
    assert told["left"] == ["vllm-chat.service still runs after SIGKILL"]
    assert "systemctl kill --signal=SIGKILL vllm-chat.service" in node.lines()
    assert "podman kill --signal=KILL vllm-chat" in node.lines()
    assert "systemctl kill --signal=SIGKILL gpu-cdi-ready.service" not in node.lines()
    assert node.state.exists()


def test_what_stops_in_time_is_not_killed(node: Node) -> None:
    node.brought_up()
    node.down()
    assert not [line for line in node.lines() if " kill " in line]


def test_processes_that_outlive_their_unit_are_named(node: Node) -> None:
    node.brought_up()
    node.module.processes_of = lambda unit: [4711] if unit == "vllm-chat.service" else []
    assert node.down()["left"] == ["processes 4711 of our units still run"]


@pytest.mark.parametrize(
    ("keep", "kept", "gone"),
    [
        (["data"], [{"kind": "volume", "name": "vllm-chat-cache"}], "image vllm"),
        (["images"], [{"kind": "image", "name": REFERENCE}], "volume vllm-chat-cache"),
    ],
)
def test_what_is_kept_on_purpose_stays_on_record(node: Node, keep: list[str], kept: list[Any], gone: str) -> None:
    node.brought_up()
    told = node.down(keep=keep)
    assert (told["kept"], told["left"]) == (kept, [])
    assert gone in told["removed"]
    assert node.manifest["files"] == {}
    assert node.manifest["volumes"] == (["vllm-chat-cache"] if keep == ["data"] else [])
    assert node.manifest["images"] == ({REFERENCE: "vllm"} if keep == ["images"] else {})
    again = node.down()
    assert not node.state.exists()
    assert [entry for entry in again["removed"] if entry.startswith(("volume", "image"))] != []


def test_what_is_kept_must_be_there(node: Node) -> None:
    node.brought_up()
    node.podman(volume_ls=(0, "theirs"), image_exists=(1, ""))
    assert node.down(keep=["data", "images"])["kept"] == []


TROUBLE: list[tuple[dict[str, tuple[int, str]], str, str, Any]] = [
    (
        {"volume_rm": (2, "Error: x\nvolume is in use")},
        "volume vllm-chat-cache: volume is in use",
        "volumes",
        ["vllm-chat-cache"],
    ),
    ({"volume_ls": (125, "no lock")}, "volumes cannot be listed: no lock", "volumes", ["vllm-chat-cache"]),
    ({"secret_rm": (1, "")}, "secret grafana-admin-password: exit code 1", "secrets", ["grafana-admin-password"]),
    ({"secret_ls": (125, "")}, "secrets cannot be listed: exit code 125", "secrets", ["grafana-admin-password"]),
    ({"rmi": (2, "image is in use")}, "image vllm: image is in use", "images", {REFERENCE: "vllm"}),
    ({"image_exists": (125, "no lock")}, "image vllm: no lock", "images", {REFERENCE: "vllm"}),
    ({"rm_--force": (125, "stuck")}, "container vllm-chat: stuck", "volumes", []),
    ({"ps_--all_--filter": (125, "no lock")}, "containers cannot be listed: no lock", "volumes", []),
]


@pytest.mark.parametrize(("changed", "said", "kind", "recorded"), TROUBLE)
def test_what_is_left_is_reported_and_stays_on_record(
    node: Node, changed: dict[str, tuple[int, str]], said: str, kind: str, recorded: Any
) -> None:
    node.brought_up()
    node.podman(**changed)
    told = node.down()
    assert told["left"] == [said]
    assert not [entry for entry in told["removed"] if said.startswith(entry)]
    assert node.manifest[kind] == recorded
    node.podman()
    assert node.down()["left"] == []
    assert not node.state.exists()


def test_a_file_that_cannot_be_removed_is_left_and_not_removed(node: Node) -> None:
    manifest = node.brought_up()
    path = node.root / "quadlets/vllm-chat.container"
    path.unlink()
    path.mkdir()
    told = node.down()
    assert str(path) not in told["removed"]
    assert told["left"][0].startswith(str(path) + ": ")
    assert str(path) in manifest.data["files"]
    assert str(path) in node.manifest["files"]


def test_other_peoples_volumes_and_secrets_are_never_named(node: Node) -> None:
    node.brought_up()
    node.down()
    assert not [line for line in node.lines() if "theirs" in line]
    assert not [line for line in node.lines() if "--force" in line and " rm --force --time=5 vllm-chat" not in line]


def test_check_mode_lists_everything_and_does_nothing(node: Node) -> None:
    node.brought_up()
    told = node.down(check=True)
    assert len(told["removed"]) == 6
    assert told["left"] == []
    assert node.manifest["images"] == {REFERENCE: "vllm"}
    assert (node.root / "quadlets/vllm-chat.container").exists()
    harmless = ("podman ps", "podman volume ls", "podman secret ls", "podman image exists", "systemctl list-units")
    assert [line for line in node.lines() if not line.startswith(harmless)] == []


def test_a_node_without_a_record_is_left_alone(node: Node) -> None:
    told = node.down()
    assert told == {**told, "changed": False, "removed": [], "left": [], "kept": [], "as_found": None}
    assert node.lines() == []


def test_a_bring_up_that_never_got_to_podman_does_not_make_its_storage(node: Node) -> None:
    node.brought_up()
    node.module.STORAGE = str(node.root / "nothing")
    assert node.down()["left"] == []
    assert not [line for line in node.lines() if line.startswith("podman")]
    assert not node.state.exists()


def test_a_node_without_podman_says_so(node: Node) -> None:
    node.brought_up()
    (node.programs / "podman").unlink()
    assert "volumes cannot be listed: [Errno 2]" in node.down()["left"][1]


def test_a_damaged_first_snapshot_does_not_stop_a_teardown_but_is_told(node: Node) -> None:
    node.brought_up()
    (node.state / "as-found.json").write_text("{")
    told = node.down()
    assert "as-found.json is damaged" in told["left"][0]
    assert told["as_found"] is None
    assert "image vllm" in told["removed"]


def test_a_damaged_manifest_stops_it(node: Node) -> None:
    node.brought_up()
    (node.state / "manifest.json").write_text("{")
    assert "manifest.json is damaged" in node.down()["msg"]
    assert node.lines() == []


def test_a_foreign_file_comes_back(node: Node) -> None:
    path = node.root / "modules"
    path.write_text("theirs")
    node.brought_up().install(str(path), b"ours", 0o644, os.getuid(), os.getgid(), "host")
    node.down()
    assert path.read_text() == "theirs"


def test_processes_are_found_below_a_units_cgroup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = load("roles/teardown/library/node_teardown.py")
    inner = tmp_path / "vllm-chat.service/libpod-payload"
    inner.mkdir(parents=True)
    (inner / "cgroup.procs").write_text("12\n13\n")
    (inner.parent / "cgroup.procs").write_text("")
    really = module.glob.glob
    monkeypatch.setattr(
        module.glob,
        "glob",
        lambda pattern, **how: really(pattern.replace("/sys/fs/cgroup/system.slice", str(tmp_path)), **how),
    )
    assert module.processes_of("vllm-chat.service") == [12, 13]
    assert module.processes_of("other.service") == []
