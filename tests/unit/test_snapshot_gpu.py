"""nvidia-smi, driver and device parsers: on made-up text, on real output where it is there, on garbage."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.node_code import SHARED_SMI, utils

gpu = utils("snapshot_gpu")
Host = utils("snapshot_host").Host

XML = """<?xml version="1.0" ?>
<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">
<nvidia_smi_log>
 <driver_version>570.1.2</driver_version><cuda_version>12.8</cuda_version>
 <gpu id="00000000:19:00.0">
  <product_name>NVIDIA Test</product_name><uuid>GPU-a</uuid>
  <persistence_mode>Enabled</persistence_mode>
  <mig_mode><current_mig>Enabled</current_mig></mig_mode>
  <mig_devices><mig_device><index>0</index><gpu_instance_id>7</gpu_instance_id>
   <compute_instance_id>0</compute_instance_id></mig_device></mig_devices>
  <fb_memory_usage><total>81559 MiB</total><used>1 MiB</used></fb_memory_usage>
  <ecc_mode><current_ecc>Enabled</current_ecc></ecc_mode>
  <ecc_errors><volatile><sram_correctable>9</sram_correctable><sram_uncorrectable_parity>1</sram_uncorrectable_parity>
   <sram_uncorrectable_secded>0</sram_uncorrectable_secded><dram_uncorrectable>2</dram_uncorrectable></volatile>
   <aggregate><dram_uncorrectable>[N/A]</dram_uncorrectable></aggregate></ecc_errors>
  <remapped_rows><remapped_row_pending>Yes</remapped_row_pending><remapped_row_failure>No</remapped_row_failure></remapped_rows>
  <fabric><state>Completed</state><status>Success</status></fabric>
 </gpu>
 <gpu id="00000000:3B:00.0"><uuid>GPU-b</uuid>
  <ecc_errors><volatile><double_bit><device_memory>1</device_memory><total>4</total></double_bit></volatile></ecc_errors>
  <retired_pages><pending_retirement>No</pending_retirement></retired_pages>
 </gpu>
</nvidia_smi_log>"""


def test_devices() -> None:
    found = gpu.devices_from_xml(XML)
    first, second = found["devices"]
    assert (found["smi"], found["cuda"]) == ("570.1.2", "12.8")
    assert (first["index"], second["index"]) == (0, 1)
    assert first["memory_total_bytes"] == 81559 << 20
    assert first["mig"] == [{"index": 0, "gi": 7, "ci": 0, "uuid": None, "memory_total_bytes": None}]
    assert first["ecc_volatile_uncorrectable"] == 3
    assert first["ecc_aggregate_uncorrectable"] is None
    assert (first["remap_pending"], first["remap_failure"]) == (True, False)
    assert (first["fabric_state"], first["fabric_status"]) == ("Completed", "Success")
    assert second["ecc_volatile_uncorrectable"] == 4
    assert second["remap_pending"] is False
    assert second["memory_total_bytes"] is None
    assert second["name"] is None


def test_mig_uuids_come_from_the_listing() -> None:
    devices = gpu.devices_from_xml(XML)["devices"]
    gpu.add_mig_uuids(
        devices,
        "GPU 0: NVIDIA Test (UUID: GPU-a)\n"
        "  MIG 1g.10gb     Device  0: (UUID: MIG-x)\n"
        "GPU 1: NVIDIA (UUID: GPU-b)\n",
    )
    assert devices[0]["mig"][0]["uuid"] == "MIG-x"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "No devices were found",
        "<html></html>",
        "<!DOCTYPE x [<!ENTITY a 'b'>]><nvidia_smi_log/>",
        XML[:400],
    ],
)
def test_what_is_no_such_xml_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="nvidia-smi"):
        gpu.devices_from_xml(text)


@given(st.text())
def test_garbage_is_refused_or_read(text: str) -> None:
    with contextlib.suppress(ValueError):
        gpu.devices_from_xml(text)
    gpu.processes_from_csv(text)
    gpu.unit_of(text)
    gpu.loaded_version(text)
    gpu.add_mig_uuids([], text)


@given(st.text(alphabet=st.characters(exclude_characters="<&", exclude_categories=("Cs", "Cc"))))
def test_any_value_in_an_element_is_read(text: str) -> None:
    xml = XML.replace("81559 MiB", text).replace(
        "<sram_uncorrectable_parity>1<", f"<sram_uncorrectable_parity>{text}<"
    )
    assert len(gpu.devices_from_xml(xml)["devices"]) == 2


@pytest.mark.parametrize(
    ("name", "count", "expected"),
    [
        (
            "a100-sxm4-v12.xml",
            4,
            {"name": "NVIDIA A100-SXM4-80GB", "mig_mode": "Enabled", "fabric_state": None},
        ),
        ("a10g.xml", 1, {"mig_mode": None, "remap_pending": False, "remap_failure": False}),
        (
            "rtx-3080-v13.xml",
            1,
            {"ecc_mode": None, "ecc_volatile_uncorrectable": None, "persistence": "Disabled"},
        ),
        ("tesla-t4.xml", 1, {"remap_failure": None}),
    ],
)
def test_real_output(name: str, count: int, expected: dict[str, Any]) -> None:
    path = SHARED_SMI / name
    if not path.exists():
        pytest.skip(f"the real output {name} is not beside this checkout")
    found = gpu.devices_from_xml(path.read_text())
    assert found["smi"]
    # The sample of four A100 holds one of them in full; the others were cut.
    assert 1 <= len(found["devices"]) <= count
    device = found["devices"][0]
    assert device["uuid"].startswith("GPU-")
    assert device["memory_total_bytes"] > 1 << 30
    assert {key: device[key] for key in expected} == expected


def test_real_mig_devices() -> None:
    path = SHARED_SMI / "a100-sxm4-v12.xml"
    if not path.exists():
        pytest.skip("the real output a100-sxm4-v12.xml is not beside this checkout")
    device = gpu.devices_from_xml(path.read_text())["devices"][0]
    assert [mig["gi"] for mig in device["mig"]] == [3, 4, 5, 6]


def test_processes() -> None:
    text = "GPU-b, 12, /usr/bin/python3 -c 'a, b', 512\nGPU-a, 7, VLLM::EngineCore, [N/A]\nno such line\n"
    first, second = gpu.processes_from_csv(text)
    assert first == {"pid": 7, "name": "VLLM::EngineCore", "gpu_uuid": "GPU-a", "memory_bytes": None}
    assert second == {
        "pid": 12,
        "name": "/usr/bin/python3 -c 'a, b'",
        "gpu_uuid": "GPU-b",
        "memory_bytes": 512 << 20,
    }


@pytest.mark.parametrize(
    ("cgroup", "unit"),
    [
        ("0::/system.slice/vllm-a.service/libpod-payload-1234\n", "vllm-a.service"),
        ("0::/user.slice/user-0.slice/session-3.scope\n", "session-3.scope"),
        ("0::/user.slice/user-1.slice/user@1.service/app.slice/x.service\n", "x.service"),
        ("0::/\n", None),
        (None, None),
    ],
)
def test_unit_of_a_process(cgroup: str | None, unit: str | None) -> None:
    assert gpu.unit_of(cgroup) == unit


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.161.08  Sat\nGCC", "535.161.08"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build", "570.86.15"),
        ("something else", None),
        (None, None),
    ],
)
def test_loaded_driver(text: str | None, version: str | None) -> None:
    assert gpu.loaded_version(text) == version


def write(root: Path, path: str, text: str = "") -> None:
    place = root / path.lstrip("/")
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(text)


def test_hardware_without_a_driver(tmp_path: Path) -> None:
    for name, vendor, kind in (
        ("0", "0x10de", "0x030200"),
        ("1", "0x10de", "0x068000"),
        ("2", "0x8086", "0x030000"),
    ):
        write(tmp_path, f"/sys/bus/pci/devices/{name}/vendor", vendor + "\n")
        write(tmp_path, f"/sys/bus/pci/devices/{name}/class", kind + "\n")
    write(tmp_path, "/sys/module/nouveau/refcnt")
    write(tmp_path, "/dev/nvidia0")
    write(tmp_path, "/dev/nvidia-caps/nvidia-cap1")
    assert gpu.probe_hardware(Host(root=str(tmp_path))) == {
        "pci_gpus": 1,
        "nvswitches": 1,
        "nouveau": True,
        "device_nodes": ["/dev/nvidia-caps/nvidia-cap1", "/dev/nvidia0"],
    }


def test_library_is_the_one_that_the_link_means(tmp_path: Path) -> None:
    for version in ("560.35.03", "570.86.15"):
        write(tmp_path, f"/usr/lib64/libnvidia-ml.so.{version}")
    (tmp_path / "usr/lib64/libnvidia-ml.so.1").symlink_to("libnvidia-ml.so.570.86.15")
    assert gpu.probe_driver(Host(root=str(tmp_path)))["library"] == "570.86.15"


def test_a_node_without_nvidia(tmp_path: Path) -> None:
    host = Host(root=str(tmp_path))
    assert gpu.probe_devices(host)["error"] == "nvidia-smi is not installed"
    assert gpu.probe_devices(host)["devices"] is None
    assert gpu.probe_processes(host) == []
    assert gpu.probe_fabric_manager(host) is None
    assert gpu.probe_hardware(host)["pci_gpus"] == 0
    assert host.unseen_list() == []
