"""GPUs are described before a container starts: by whoever keeps the specification, else by us, and never by both."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.unit.role_code import ROOT, calls, fast_clock, load, on_path, program

YAML = "cdiVersion: 0.5.0\nkind: nvidia.com/gpu\ndevices: []\n"
SOUND = "LoadState=loaded\nAfter=basic.target sysinit.target"
CYCLE = "LoadState=loaded\nAfter=basic.target multi-user.target"
MISSING = "LoadState=not-found\nAfter="
# The real tool adds .yaml to any other ending.
CTK = """
for word; do case "$word" in --output=*) output=${word#--output=};; esac; done
case "$output" in *.yaml|*.json) ;; *) output=$output.yaml;; esac
printf 'cdiVersion: 0.5.0\\nkind: nvidia.com/gpu\\n' > "$output"
"""


class Node:
    """A node in a folder, with a driver that answers, podman 5.4, and no refresh unit."""

    def __init__(self, root: Path) -> None:
        self.root, self.programs = root, root / "bin"
        self.script = load("roles/gpu_runtime/files/gpu-cdi-ready.py")
        self.script.PERSISTENT, self.script.VOLATILE = str(root / "etc/cdi"), str(root / "run/cdi")
        self.script.NVSWITCHES = str(root / "nvswitch/*")
        for folder in ("etc", "run", "nvswitch"):
            (root / folder).mkdir()
        for name in ("modprobe", "nvidia-modprobe"):
            program(self.programs, name)
        self.podman("5.4.2")
        self.refresh(MISSING)
        program(self.programs, "nvidia-smi", "echo GPU 0: NVIDIA H100")
        program(self.programs, "nvidia-ctk", CTK)

    def podman(self, version: str) -> None:
        program(self.programs, "podman", f"echo podman version {version}")

    def refresh(self, shown: str, code: int = 0, fabric_manager: int = 0) -> None:
        """NVIDIA's refresh unit: what systemd shows of it; starting it writes its specification."""
        writes = f"/bin/mkdir -p {self.root}/run/cdi; printf '%s' '{YAML}' > {self.root}/run/cdi/nvidia.yaml"
        program(
            self.programs,
            "systemctl",
            f"case $1 in show) echo '{shown}';; start) {writes}; exit {code};; is-active) exit {fabric_manager};; esac",
        )

    def site(self, path: str, text: str = YAML) -> Path:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file

    def ready(self, source: str = "auto", wait_s: int = 0) -> Any:
        return self.script.make_ready(source, wait_s)

    def generated(self) -> bool:
        return bool(calls(self.programs, "nvidia-ctk"))

    def refreshed(self) -> bool:
        return ["systemctl", "start", "nvidia-cdi-refresh.service"] in calls(self.programs)

    def files(self) -> list[str]:
        return sorted(str(path.relative_to(self.root)) for path in self.root.glob("*/cdi/*"))


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    on_path(monkeypatch, tmp_path / "bin")
    fast_clock(monkeypatch)
    return Node(tmp_path)


@pytest.mark.parametrize(
    ("version", "folder"),
    [("5.4.2", "run"), ("5.5.0", "etc"), ("5.5.2", "etc"), ("5.6.0", "run"), ("5.8.2", "run"), ("4.9.4-rhel", "run")],
)
def test_the_place_is_one_that_this_podman_reads(node: Node, version: str, folder: str) -> None:
    node.podman(version)
    assert node.script.own_path() == str(node.root / folder / "cdi/nvidia.yaml")


def test_a_node_without_any_specification_gets_ours(node: Node) -> None:
    assert node.ready() is None
    assert node.files() == ["run/cdi/nvidia.yaml"]
    path = node.root / "run/cdi/nvidia.yaml"
    assert path.read_text().splitlines()[1:] == ["cdiVersion: 0.5.0", "kind: nvidia.com/gpu"]
    assert path.stat().st_mode & 0o777 == 0o644
    assert node.script.is_ours(str(path))


def test_what_it_is_made_from_is_brought_about_first(node: Node) -> None:
    node.ready()
    order = [call[:2] for call in calls(node.programs) if call[0] != "podman" and call[0] != "systemctl"]
    assert order == [
        ["modprobe", "nvidia"],
        ["modprobe", "nvidia-uvm"],
        ["nvidia-modprobe", "-u"],
        ["nvidia-smi", "-L"],
        ["nvidia-ctk", "cdi"],
    ]


def test_a_second_start_makes_it_anew_and_it_stays_ours(node: Node) -> None:
    node.ready()
    node.ready()
    assert len(calls(node.programs, "nvidia-ctk")) == 2
    assert node.files() == ["run/cdi/nvidia.yaml"]
    node.script.remove()
    assert not (node.root / "run/cdi").exists()  # the folder was made for it, at the first of the two


def test_a_folder_that_was_there_stays(node: Node) -> None:
    node.site("run/cdi/other.yaml", "kind: vendor.com/net\n")
    node.ready()
    node.script.remove()
    assert node.files() == ["run/cdi/other.yaml"]


def test_a_failed_generation_leaves_nothing(node: Node) -> None:
    program(node.programs, "nvidia-ctk", "echo no NVML; exit 1")
    assert node.ready() == "nvidia-ctk cdi generate: no NVML"
    assert not (node.root / "run/cdi").exists()


SITES = [
    ("etc/cdi/nvidia.yaml", YAML),
    ("etc/cdi/gpus.json", '{"cdiVersion":"0.5.0","kind":"nvidia.com/gpu","devices":[]}'),
    ("etc/cdi/gpus.json", '{\n  "cdiVersion": "0.5.0",\n  "kind": "nvidia.com/gpu"\n}\n'),
    ("run/cdi/gpus.yaml", "kind: 'nvidia.com/gpu' # ours\n"),
    ("run/cdi/nvidia.yaml", YAML),
]


@pytest.mark.parametrize(("path", "text"), SITES)
def test_a_specification_of_the_site_is_used_and_not_touched(node: Node, path: str, text: str) -> None:
    file = node.site(path, text)
    assert node.ready() is None
    assert node.ready("site") is None
    node.script.remove()
    assert file.read_text() == text
    assert node.files() == [path]
    assert not node.generated()


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("etc/cdi/net.yaml", "kind: vendor.com/net\nname: nvidia.com/gpu\n"),
        ("etc/cdi/mgmt.yaml", "kind: nvidia.com/gpu.management\n"),
        ("etc/cdi/old.yaml.bak", YAML),
        ("run/cdi/nvidia.yaml.partial", YAML),
        ("run/cdi/nvidia.yaml.vllm-node-aside", YAML),
    ],
)
def test_what_podman_would_not_take_for_gpus_is_not_the_sites_specification(node: Node, path: str, text: str) -> None:
    node.site(path, text)
    assert node.script.site_specifications() == []
    assert node.ready() is None
    assert node.generated()


def test_a_site_that_keeps_none_is_told(node: Node) -> None:
    assert "there is none for nvidia.com/gpu" in node.ready("site")
    assert not node.generated()


def test_generating_beside_another_specification_is_refused(node: Node) -> None:
    node.site("etc/cdi/gpus.yaml")
    assert "gpus.yaml describes the GPUs already" in node.ready("generate")
    assert not node.generated()


def test_a_specification_of_the_same_name_is_kept_aside_and_comes_back(node: Node) -> None:
    theirs = YAML + "# theirs\n"
    node.site("run/cdi/nvidia.yaml", theirs)
    for _ in range(2):
        assert node.ready("generate") is None
    assert node.script.is_ours(str(node.root / "run/cdi/nvidia.yaml"))
    node.script.remove()
    assert node.files() == ["run/cdi/nvidia.yaml"]
    assert (node.root / "run/cdi/nvidia.yaml").read_text() == theirs


def test_one_that_its_keeper_has_written_since_is_newer_than_the_one_aside(node: Node) -> None:
    node.site("run/cdi/nvidia.yaml", YAML + "# old\n")
    node.ready("generate")
    node.site("run/cdi/nvidia.yaml", YAML + "# new\n")
    node.script.remove()
    assert node.files() == ["run/cdi/nvidia.yaml"]
    assert (node.root / "run/cdi/nvidia.yaml").read_text().endswith("# new\n")


@pytest.mark.parametrize(("shown", "sound"), [(SOUND, True), (CYCLE, False), (MISSING, False)])
def test_the_refresh_unit_is_started_where_waiting_for_it_is_safe(node: Node, shown: str, sound: bool) -> None:
    node.refresh(shown)
    assert node.script.refresh_is_sound() is sound
    assert node.ready() is None
    assert node.refreshed() is sound
    assert node.generated() is not sound


def test_a_refreshed_specification_is_refreshed_again_and_any_other_is_not(node: Node) -> None:
    node.refresh(SOUND)
    node.site("run/cdi/nvidia.yaml")
    assert node.ready() is None
    assert node.refreshed()
    node.site("etc/cdi/gpus.yaml")
    (node.programs / "calls").unlink()
    assert node.ready() is None
    assert not node.refreshed()


def test_what_a_1_19_0_toolkit_wrote_at_boot_is_the_sites(node: Node) -> None:
    node.refresh(CYCLE)
    node.site("run/cdi/nvidia.yaml")
    assert node.ready() is None
    assert not node.refreshed()
    assert not node.generated()


def test_a_refresh_that_fails_is_told(node: Node) -> None:
    node.refresh(SOUND, code=1)
    assert node.ready().startswith("nvidia-cdi-refresh.service: ")


def test_podman_5_5_does_not_see_what_the_refresh_unit_writes(node: Node) -> None:
    node.podman("5.5.2")
    node.refresh(SOUND)
    node.site("run/cdi/nvidia.yaml")
    assert node.ready() is None
    assert not node.refreshed()
    assert node.files() == ["etc/cdi/nvidia.yaml", "run/cdi/nvidia.yaml"]
    node.script.remove()
    assert node.files() == ["run/cdi/nvidia.yaml"]
    assert not (node.root / "etc/cdi").exists()


def test_a_driver_that_does_not_answer_is_waited_for_and_then_quoted(node: Node) -> None:
    program(node.programs, "nvidia-smi", "echo No devices were found; exit 6")
    assert node.ready(wait_s=7) == "nvidia-smi -L: No devices were found"
    assert len(calls(node.programs, "nvidia-smi")) == 5
    assert not node.generated()


def test_a_driver_that_answers_at_last_is_enough(node: Node) -> None:
    late = f"[ -e {node.root}/late ] || {{ : > {node.root}/late; exit 9; }}"
    program(node.programs, "nvidia-smi", late)
    assert node.ready(wait_s=7) is None


def fabric(state: str) -> str:
    lines = f"    Fabric\n        State                             : {state}\n        Status                            : N/A\n"
    return f"[ $1 != -q ] || printf '%s' '{lines}'"


@pytest.mark.parametrize("state", ["In Progress", "Not Started"])
def test_a_fabric_that_is_not_up_is_waited_for_and_then_named(node: Node, state: str) -> None:
    (node.root / "nvswitch/0").touch()
    program(node.programs, "nvidia-smi", fabric(state))
    assert node.ready(wait_s=3) == f"fabric state: {state}"


@pytest.mark.parametrize("state", ["Completed", "N/A"])
def test_a_fabric_that_is_up_or_has_no_state_is_not_waited_for(node: Node, state: str) -> None:
    (node.root / "nvswitch/0").touch()
    program(node.programs, "nvidia-smi", fabric(state))
    assert node.ready() is None


def test_nvswitch_without_its_fabric_manager_is_named(node: Node) -> None:
    (node.root / "nvswitch/0").touch()
    node.refresh(MISSING, fabric_manager=3)
    assert "nvidia-fabricmanager.service is not active" in node.ready()


def test_a_machine_without_nvswitch_needs_no_fabric_manager(node: Node) -> None:
    node.refresh(MISSING, fabric_manager=3)
    program(node.programs, "nvidia-smi", fabric("In Progress"))
    assert node.ready() is None


def test_a_missing_tool_is_named(node: Node) -> None:
    (node.programs / "nvidia-ctk").unlink()
    assert node.ready() == "nvidia-ctk cdi generate: nvidia-ctk is not installed"


def test_the_service_fails_with_a_sentence(tmp_path: Path) -> None:
    words = [sys.executable, str(ROOT / "roles/gpu_runtime/files/gpu-cdi-ready.py"), "--source=site", "--wait-s=0"]
    done = subprocess.run(words, env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == "gpu-cdi-ready: nvidia-smi -L: nvidia-smi is not installed\n"
