"""The stand-ins for nvidia-smi, nvidia-ctk, nvidia-modprobe and NVIDIA's daemons, run as programs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from vllm_node.lab import gpu

REAL_XML = Path(__file__).parents[3] / "shared/data/nvidia-smi"
HEALTHY = [name for name in gpu.PROFILES if name not in ("none", "mismatch")]


@dataclass
class Node:
    """A booted node's root, as far as these programs look: plain files stand for device nodes."""

    root: Path
    profile: gpu.Profile

    def run(self, *command: str, timeout: float = 30, **env: str) -> subprocess.CompletedProcess[str]:
        program, *arguments = command
        return subprocess.run(
            [sys.executable, str(self.root / "usr/bin" / program), *arguments],
            env={**os.environ, "STANDIN_NVIDIA_ROOT": str(self.root), **env},
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout,
        )

    def smi(self, *arguments: str) -> str:
        result = self.run("nvidia-smi", *arguments)
        assert result.returncode == 0, result.stdout + result.stderr
        return result.stdout

    def xml(self) -> ET.Element:
        return ET.fromstring(self.smi("-q", "-x"))

    def spec(self, *arguments: str) -> dict[str, Any]:
        result = self.run("nvidia-ctk", "cdi", "generate", *arguments)
        assert result.returncode == 0, result.stderr
        spec: dict[str, Any] = yaml.safe_load(result.stdout)
        return spec

    def tell(self, name: str, text: str) -> Path:
        path = self.root / "run/standin-nvidia" / name
        path.write_text(text)
        return path


MakeNode = Callable[[str], Node]


@pytest.fixture
def make_node(tmp_path: Path) -> MakeNode:
    def make(name: str) -> Node:
        gpu.install(tmp_path, name)
        for line in (tmp_path / "usr/lib/tmpfiles.d/standin-nvidia.conf").read_text().splitlines():
            kind, path = line.split()[:2]
            place = tmp_path / path.lstrip("/")
            if kind == "d":
                place.mkdir(parents=True)
            elif kind == "c":
                place.parent.mkdir(exist_ok=True)
                place.touch()
        return Node(tmp_path, gpu.PROFILES[name])

    return make


def text_of(element: ET.Element, path: str) -> str:
    found = element.findtext(path)
    assert found is not None, path
    return found


def mib(element: ET.Element, path: str) -> int:
    value, unit = text_of(element, path).split()
    assert unit == "MiB"
    return int(value)


# --- nvidia-smi -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", HEALTHY)
def test_xml_says_what_the_profile_says(make_node: MakeNode, name: str) -> None:
    node = make_node(name)
    log = node.xml()
    assert log.tag == "nvidia_smi_log"
    assert text_of(log, "driver_version") == node.profile.driver
    assert text_of(log, "attached_gpus") == str(len(node.profile.gpus))
    for element, device in zip(log.findall("gpu"), node.profile.gpus, strict=True):
        assert element.get("id") == "0000" + device.pci.upper()
        assert text_of(element, "uuid") == device.uuid
        assert text_of(element, "product_name") == device.name
        assert text_of(element, "minor_number") == str(device.index)
        assert mib(element, "fb_memory_usage/total") == device.memory_mib
        parts = sum(mib(element, f"fb_memory_usage/{part}") for part in ("reserved", "used", "free"))
        assert parts == device.memory_mib


def test_xml_lists_mig_devices(make_node: MakeNode) -> None:
    node = make_node("mig")
    element = node.xml().find("gpu")
    assert element is not None
    assert text_of(element, "mig_mode/current_mig") == "Enabled"
    found = [
        tuple(int(text_of(mig, key)) for key in ("index", "gpu_instance_id", "compute_instance_id"))
        for mig in element.findall("mig_devices/mig_device")
    ]
    assert found == [(mig.index, mig.gi, mig.ci) for mig in node.profile.gpus[0].mig]


@pytest.mark.parametrize(("name", "mode"), [("a100x4", "Disabled"), ("l40sx2", "N/A")])
def test_without_mig_the_list_says_none(make_node: MakeNode, name: str, mode: str) -> None:
    element = make_node(name).xml().find("gpu")
    assert element is not None
    assert text_of(element, "mig_mode/current_mig") == mode
    assert text_of(element, "mig_devices").strip() == "None"


def test_xml_shows_ecc_errors_and_a_pending_remap(make_node: MakeNode) -> None:
    healthy, faulty = make_node("ecc").xml().findall("gpu")
    assert text_of(healthy, "ecc_errors/volatile/dram_uncorrectable") == "0"
    assert text_of(healthy, "remapped_rows/remapped_row_pending") == "No"
    assert text_of(faulty, "ecc_errors/volatile/dram_uncorrectable") == "3"
    assert text_of(faulty, "remapped_rows/remapped_row_pending") == "Yes"
    assert text_of(faulty, "remapped_rows/remapped_row_failure") == "No"


@pytest.mark.parametrize(("name", "state"), [("h100x8", "Completed"), ("l40sx2", "N/A")])
def test_fabric_state_follows_the_switches(make_node: MakeNode, name: str, state: str) -> None:
    for element in make_node(name).xml().findall("gpu"):
        assert text_of(element, "fabric/state") == state


def paths(element: ET.Element, prefix: str = "") -> Iterator[str]:
    for child in element:
        yield prefix + child.tag
        yield from paths(child, prefix + child.tag + "/")


@pytest.mark.skipif(
    not REAL_XML.is_dir(), reason="no shared/data beside the project: real files to compare with"
)
@pytest.mark.parametrize("name", HEALTHY)
def test_every_element_exists_in_a_real_file_too(make_node: MakeNode, name: str) -> None:
    real = {path for file in REAL_XML.glob("*.xml") for path in paths(ET.parse(file).getroot())}
    assert len(real) > 100
    assert set(paths(make_node(name).xml())) - real == set()


def test_list_names_gpus_and_mig_devices(make_node: MakeNode) -> None:
    node = make_node("mig")
    device = node.profile.gpus[0]
    first, *others = node.smi("-L").splitlines()
    assert first == f"GPU 0: {device.name} (UUID: {device.uuid})"
    assert [line.split("UUID: ")[1].rstrip(")") for line in others] == [mig.uuid for mig in device.mig]


def test_csv_query_with_and_without_units(make_node: MakeNode) -> None:
    node = make_node("l40sx2")
    query = "--query-gpu=index,name,memory.total"
    heading, first, _ = node.smi(query, "--format=csv").splitlines()
    assert heading == "index, name, memory.total [MiB]"
    assert first == "0, NVIDIA L40S, 46068 MiB"
    assert node.smi(query, "--format=csv,noheader,nounits").splitlines()[1] == "1, NVIDIA L40S, 46068"
    assert len(node.smi(query, "--format=csv,noheader", "-i", "1").splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["--query-gpu=index,colour", "--format=csv"], 2, 'Field "colour" is not a valid field to query.'),
        (["--query-compute-apps=pid,colour", "--format=csv"], 2, 'Field "colour" is not a valid field'),
        (["--query-gpu=index"], 1, "--format"),
        (["--query-gpu=index", "--format=csv,pretty"], 1, "is not a valid format"),
        (["-x"], 1, "Invalid combination of input arguments"),
        (["-L", "-q"], 1, "Invalid combination of input arguments"),
        (["--frobnicate"], 1, "Invalid combination of input arguments"),
        (["-i", "7", "-q"], 6, "No devices were found"),
    ],
)
def test_what_the_real_one_refuses_is_refused(
    make_node: MakeNode, arguments: list[str], status: int, words: str
) -> None:
    result = make_node("l40sx2").run("nvidia-smi", *arguments)
    assert result.returncode == status
    assert words in result.stdout


def test_mismatch_fails_with_the_real_words(make_node: MakeNode) -> None:
    result = make_node("mismatch").run("nvidia-smi", "-q", "-x")
    assert result.returncode == 18
    assert "Failed to initialize NVML: Driver/library version mismatch" in result.stdout


@pytest.mark.parametrize(
    ("gone", "status", "words"),
    [
        ("dev/nvidia*", 6, "No devices were found"),
        ("usr/lib/x86_64-linux-gnu/libnvidia-ml.so.*", 12, "couldn't find libnvidia-ml.so"),
        ("usr/share/standin-nvidia/profile.json", 9, "couldn't communicate with the NVIDIA driver"),
    ],
)
def test_each_missing_part_has_its_own_exit_status(
    make_node: MakeNode, gone: str, status: int, words: str
) -> None:
    node = make_node("l40sx2")
    for path in node.root.glob(gone):
        path.unlink()
    result = node.run("nvidia-smi")
    assert (result.returncode, words in result.stdout) == (status, True)


def test_only_gpus_whose_node_is_there_are_seen(make_node: MakeNode) -> None:
    node = make_node("a100x4")
    (node.root / "dev/nvidia2").unlink()
    found = node.smi("--query-gpu=index", "--format=csv,noheader").split()
    assert found == ["0", "1", "3"]


def test_processes_that_live_are_listed_and_hold_memory(make_node: MakeNode) -> None:
    node = make_node("l40sx2")
    query = ["--query-compute-apps=pid,name,gpu_uuid,used_memory", "--format=csv,noheader,nounits"]
    assert node.smi(*query) == ""
    dead = subprocess.Popen(["true"])
    dead.wait()
    entries = [
        {"pid": pid, "name": "python3", "gpu": 1, "used_memory_mib": 4000} for pid in (os.getpid(), dead.pid)
    ]
    node.tell("processes.json", json.dumps(entries))
    assert node.smi(*query) == f"{os.getpid()}, python3, {node.profile.gpus[1].uuid}, 4000\n"
    idle, busy = node.xml().findall("gpu")
    assert mib(busy, "fb_memory_usage/used") - mib(idle, "fb_memory_usage/used") == 4000
    assert text_of(busy, "processes/process_info/pid") == str(os.getpid())


def test_a_lost_gpu_ends_the_query_and_leaves_the_list(make_node: MakeNode) -> None:
    node = make_node("l40sx2")
    node.tell("lost", "1\n")
    query = node.run("nvidia-smi", "-q", "-x")
    assert query.returncode == 255
    assert "Unable to determine the device handle for GPU" in query.stdout
    assert "<gpu" not in query.stdout
    listed = node.run("nvidia-smi", "-L").stdout
    assert node.profile.gpus[0].uuid in listed
    assert node.profile.gpus[1].uuid not in listed


def test_a_hang_lasts_as_long_as_its_file(make_node: MakeNode) -> None:
    node = make_node("l40sx2")
    hang = node.tell("hang", "")
    with pytest.raises(subprocess.TimeoutExpired):
        node.run("nvidia-smi", "-L", timeout=1)
    hang.unlink()
    assert "GPU 0" in node.smi("-L")


@pytest.mark.parametrize("arguments", [[], ["-q"], ["topo", "-m"], ["--version"], ["--help"]])
def test_what_an_operator_types_is_answered(make_node: MakeNode, arguments: list[str]) -> None:
    node = make_node("h100x8")
    output = node.smi(*arguments)
    assert len(output.splitlines()) > 3
    if arguments == ["topo", "-m"]:
        assert "NV18" in output


# --- nvidia-ctk and nvidia-modprobe -----------------------------------------------------------------------


def nodes_of(edits: dict[str, Any]) -> list[str]:
    return [entry["path"] for entry in edits["deviceNodes"]]


def test_spec_names_devices_by_index_by_uuid_and_all(make_node: MakeNode) -> None:
    node = make_node("l40sx2")
    spec = node.spec()
    assert (spec["cdiVersion"], spec["kind"]) == ("0.5.0", "nvidia.com/gpu")
    devices = {entry["name"]: nodes_of(entry["containerEdits"]) for entry in spec["devices"]}
    one, two = (device.uuid for device in node.profile.gpus)
    assert devices == {
        "0": ["/dev/nvidia0"],
        "1": ["/dev/nvidia1"],
        one: ["/dev/nvidia0"],
        two: ["/dev/nvidia1"],
        "all": ["/dev/nvidia0", "/dev/nvidia1"],
    }


def test_uvm_is_in_the_spec_only_after_nvidia_modprobe(make_node: MakeNode) -> None:
    node = make_node("l40sx2")
    assert nodes_of(node.spec()["containerEdits"]) == ["/dev/nvidia-modeset", "/dev/nvidiactl"]
    assert node.run("nvidia-modprobe", "-u").returncode == 0
    assert "/dev/nvidia-uvm" not in nodes_of(node.spec()["containerEdits"])
    assert node.run("nvidia-modprobe", "-u", "-c0").returncode == 0
    assert {"/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"} <= set(nodes_of(node.spec()["containerEdits"]))


def test_modprobe_without_u_makes_the_gpus_nodes_only(make_node: MakeNode) -> None:
    node = make_node("l40sx2")
    for path in (node.root / "dev").iterdir():
        path.unlink()
    assert node.run("nvidia-modprobe", "-c", "1").returncode == 0
    assert {path.name for path in (node.root / "dev").iterdir()} == {"nvidia1", "nvidiactl"}


def test_modprobe_refuses_what_it_does_not_know(make_node: MakeNode) -> None:
    assert make_node("l40sx2").run("nvidia-modprobe", "--uvm").returncode != 0


def test_every_mount_of_the_spec_exists_and_is_read_only(make_node: MakeNode) -> None:
    node = make_node("h100x8")
    mounts = node.spec()["containerEdits"]["mounts"]
    names = {entry["hostPath"] for entry in mounts}
    assert "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.570.86.15" in names
    assert "/usr/share/standin-nvidia/profile.json" in names
    for entry in mounts:
        assert (node.root / entry["hostPath"].lstrip("/")).exists()
        assert "ro" in entry["options"]
    # Programs ask for libcuda by its link.
    (library,) = (entry["hostPath"] for entry in mounts if entry["containerPath"].endswith("/libcuda.so.1"))
    assert library == "/usr/lib/x86_64-linux-gnu/libcuda.so.570.86.15"


def test_mig_devices_have_three_nodes(make_node: MakeNode) -> None:
    devices = {
        entry["name"]: nodes_of(entry["containerEdits"]) for entry in make_node("mig").spec()["devices"]
    }
    assert {"0", "0:0", "0:1", "0:2", "0:3", "all"} <= set(devices)
    assert devices["0:0"] == [
        "/dev/nvidia0",
        "/dev/nvidia-caps/nvidia-cap21",
        "/dev/nvidia-caps/nvidia-cap22",
    ]


def test_without_capability_nodes_only_the_parent_is_listed(make_node: MakeNode) -> None:
    node = make_node("mig")
    for path in (node.root / "dev/nvidia-caps").iterdir():
        path.unlink()
    names = {entry["name"] for entry in node.spec()["devices"]}
    assert names == {"0", node.profile.gpus[0].uuid, "all"}


def test_yaml_and_json_say_the_same(make_node: MakeNode) -> None:
    node = make_node("mig")
    assert node.spec("--format=yaml") == node.spec("--format=json")


def test_written_spec_can_be_read_by_all_and_listed(make_node: MakeNode) -> None:
    node = make_node("mig")
    output = node.root / "etc/cdi/nvidia.yaml"
    assert node.run("nvidia-ctk", "cdi", "generate", f"--output={output}").returncode == 0
    assert output.stat().st_mode & 0o777 == 0o644
    assert [path.name for path in output.parent.iterdir()] == ["nvidia.yaml"]
    expected = {f"nvidia.com/gpu={entry['name']}" for entry in yaml.safe_load(output.read_text())["devices"]}
    assert set(node.run("nvidia-ctk", "cdi", "list").stdout.split()) == expected


def test_spec_version_can_be_made_too_new_and_a_flag_lowers_it(make_node: MakeNode) -> None:
    node = make_node("l40sx2")
    assert node.spec("--standin-cdi-version=1.1.0")["cdiVersion"] == "1.1.0"
    place = node.root / "usr/share/standin-nvidia/profile.json"
    place.write_text(json.dumps({**json.loads(place.read_text()), "cdi_version": "0.7.0"}))
    assert node.spec()["cdiVersion"] == "0.7.0"
    assert node.spec("--feature-flag=no-additional-gids-for-device-nodes")["cdiVersion"] == "0.5.0"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["cdi", "generate", "--frobnicate=1"], "flag provided but not defined: --frobnicate"),
        (["cdi", "generate", "--output"], "flag needs an argument"),
        (["cdi", "generate", "--format=toml"], "invalid output format: toml"),
        (["cdi", "generate", "--mode=csv"], "invalid discovery mode"),
        (["cdi", "generate", "--device-name-strategy=colour"], "invalid device name strategy"),
        (["frobnicate"], "the stand-in knows"),
    ],
)
def test_ctk_refuses_what_it_does_not_know(make_node: MakeNode, arguments: list[str], words: str) -> None:
    result = make_node("l40sx2").run("nvidia-ctk", *arguments)
    assert result.returncode == 1
    assert words in result.stderr


def test_no_spec_without_a_working_driver(make_node: MakeNode) -> None:
    node = make_node("mismatch")
    output = node.root / "etc/cdi/nvidia.yaml"
    result = node.run("nvidia-ctk", "cdi", "generate", f"--output={output}")
    assert result.returncode == 1
    assert "Driver/library version mismatch" in result.stderr
    assert not output.exists()
    assert "version 1.20.0" in node.run("nvidia-ctk", "--version").stdout


# --- daemons ----------------------------------------------------------------------------------------------


def test_the_daemons_socket_is_in_the_spec_while_it_runs(make_node: MakeNode) -> None:
    node = make_node("h100x8")
    socket = node.root / "run/nvidia-fabricmanager/socket"
    socket.parent.mkdir()
    daemon = subprocess.Popen(
        [sys.executable, node.root / "usr/bin/nv-fabricmanager"],
        env={**os.environ, "STANDIN_NVIDIA_ROOT": str(node.root)},
    )
    try:
        deadline = time.monotonic() + 10
        while not socket.exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        mounts = [entry["hostPath"] for entry in node.spec()["containerEdits"]["mounts"]]
        assert "/run/nvidia-fabricmanager/socket" in mounts
    finally:
        daemon.send_signal(signal.SIGTERM)
    assert daemon.wait(timeout=5) == 0
    mounts = [entry["hostPath"] for entry in node.spec()["containerEdits"]["mounts"]]
    assert "/run/nvidia-fabricmanager/socket" not in mounts


def test_fabric_manager_tells_its_version(make_node: MakeNode) -> None:
    node = make_node("h100x8")
    assert node.run("nv-fabricmanager", "--version").stdout == "Fabric Manager version is : 570.86.15\n"
    assert node.run("nv-fabricmanager", "--frobnicate").returncode == 1
