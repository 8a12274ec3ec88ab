"""Hardware profiles of lab nodes, and what `gpu.install` leaves in a root filesystem."""

from __future__ import annotations

import ctypes
import json
import platform
import re
from pathlib import Path

import pytest

from vllm_node.lab import gpu

WITH_GPUS = [name for name in gpu.PROFILES if name != "none"]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "root"


def device_nodes(root: Path) -> set[str]:
    lines = (root / "usr/lib/tmpfiles.d/standin-nvidia.conf").read_text().splitlines()
    return {line.split()[1] for line in lines if line.startswith("c ")}


def test_the_profiles_are_the_documented_ones() -> None:
    expected = {"h100x8": 8, "a100x4": 4, "l40sx2": 2, "mig": 1, "ecc": 2, "mismatch": 2, "none": 0}
    assert {name: len(profile.gpus) for name, profile in gpu.PROFILES.items()} == expected


@pytest.mark.parametrize("field", ["uuid", "pci", "serial"])
def test_no_two_gpus_of_a_node_share_an_identity(field: str) -> None:
    for profile in gpu.PROFILES.values():
        values = [getattr(device, field) for device in profile.gpus]
        assert len(set(values)) == len(values), profile.name


def test_made_up_uuids_stay_the_same_from_run_to_run() -> None:
    assert gpu.PROFILES["h100x8"].gpus[0].uuid == "GPU-41f8739a-8888-51ea-ba03-e752e94e299f"


def test_memory_of_mig_devices_fits_their_gpu() -> None:
    (device,) = gpu.PROFILES["mig"].gpus
    assert len(device.mig) >= 2
    assert sum(mig.memory_mib for mig in device.mig) <= device.memory_mib


def test_capability_minors_of_a_gpu_instance_are_twelve_and_thirteen_for_the_first() -> None:
    assert gpu.Mig(0, 1, 0, "7g.80gb", 80000, 98, "MIG-x").cap_minors == (12, 13)


def test_an_unknown_profile_is_refused_by_name(root: Path) -> None:
    with pytest.raises(ValueError, match=r"no hardware profile 'h200x8'; there are: .*h100x8"):
        gpu.install(root, "h200x8")
    assert not root.exists()


def test_none_writes_nothing(root: Path) -> None:
    gpu.install(root, "none")
    assert not root.exists()


@pytest.mark.parametrize("name", WITH_GPUS)
def test_programs_are_executable_and_say_that_they_are_stand_ins(root: Path, name: str) -> None:
    gpu.install(root, name)
    programs = sorted((root / "usr/bin").iterdir())
    assert {"nvidia-smi", "nvidia-ctk", "nvidia-modprobe"} <= {program.name for program in programs}
    for program in programs:
        shebang, comment = program.read_text().splitlines()[:2]
        assert shebang == "#!/usr/bin/python3"
        assert comment.startswith("# Stand-in for"), program.name
        assert program.stat().st_mode & 0o777 == 0o755


@pytest.mark.parametrize("name", WITH_GPUS)
def test_every_symlink_of_a_root_leads_to_a_file_in_it(root: Path, name: str) -> None:
    gpu.install(root, name)
    links = [path for path in root.rglob("*") if path.is_symlink()]
    assert len(links) >= 4
    for link in links:
        target = link.readlink()
        place = root / target.relative_to("/") if target.is_absolute() else link.parent / target
        assert place.is_file(), link


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the stand-in of libcuda is for x86-64")
@pytest.mark.parametrize("name", WITH_GPUS)
def test_cuinit_of_the_stand_in_answers_what_the_profile_says(root: Path, name: str) -> None:
    gpu.install(root, name)
    profile = gpu.PROFILES[name]
    library = root / gpu.LIB_DIR / f"libcuda.so.{profile.library}"
    assert ctypes.CDLL(str(library)).cuInit(0) == profile.cuinit == (803 if name == "mismatch" else 0)
    with pytest.raises(AttributeError):
        _ = ctypes.CDLL(str(library)).cuDeviceGetCount


@pytest.mark.parametrize("name", WITH_GPUS)
def test_installing_twice_changes_nothing(root: Path, name: str) -> None:
    def content() -> dict[str, bytes]:
        return {str(p): p.read_bytes() for p in root.rglob("*") if p.is_file()}

    gpu.install(root, name)
    before = content()
    gpu.install(root, name)
    assert content() == before


def test_proc_driver_has_the_shape_of_the_real_one(root: Path) -> None:
    gpu.install(root, "h100x8")
    driver = root / "usr/share/standin-nvidia/proc-driver"
    version = (driver / "nvidia/version").read_text()
    assert re.match(r"NVRM version: NVIDIA UNIX x86_64 Kernel Module  570\.86\.15  \w", version)
    profile = gpu.PROFILES["h100x8"]
    assert sorted(p.name for p in (driver / "nvidia/gpus").iterdir()) == sorted(g.pci for g in profile.gpus)
    assert {p.name for p in (driver / "nvidia-nvswitch/devices").iterdir()} == set(profile.nvswitches)
    information = (driver / "nvidia/gpus" / profile.gpus[3].pci / "information").read_text()
    assert re.search(r"^GPU UUID:\s+" + profile.gpus[3].uuid + "$", information, re.MULTILINE)
    assert re.search(r"^Device Minor:\s+3$", information, re.MULTILINE)


def test_proc_driver_is_bound_by_a_mount_unit(root: Path) -> None:
    gpu.install(root, "a100x4")
    unit = (root / "usr/lib/systemd/system/proc-driver.mount").read_text()
    assert "What=/usr/share/standin-nvidia/proc-driver\nWhere=/proc/driver\n" in unit
    assert "Options=bind" in unit
    assert (root / "usr/lib/systemd/system/local-fs.target.wants/proc-driver.mount").is_symlink()


def test_uvm_nodes_are_left_to_nvidia_modprobe(root: Path) -> None:
    gpu.install(root, "l40sx2")
    assert device_nodes(root) == {f"/dev/nvidia{name}" for name in ("0", "1", "ctl", "-modeset")}


def test_device_nodes_are_twins_of_dev_null(root: Path) -> None:
    gpu.install(root, "h100x8")
    for line in (root / "usr/lib/tmpfiles.d/standin-nvidia.conf").read_text().splitlines():
        if line.startswith("c "):
            assert line.split()[-1] == "1:3"


def test_mig_capability_nodes_match_what_proc_says(root: Path) -> None:
    gpu.install(root, "mig")
    access = (root / "usr/share/standin-nvidia/proc-driver/nvidia/capabilities").rglob("access")
    minors = {int(path.read_text().split()[1]) for path in access}
    assert len(minors) == 8
    nodes = {f"/dev/nvidia-caps/nvidia-cap{minor}" for minor in minors | {1, 2}}
    assert nodes == {node for node in device_nodes(root) if "caps" in node}


def test_a_mismatch_is_between_the_module_and_the_files(root: Path) -> None:
    gpu.install(root, "mismatch")
    version = (root / "usr/share/standin-nvidia/proc-driver/nvidia/version").read_text()
    libraries = {p.name for p in (root / "usr/lib/x86_64-linux-gnu").iterdir() if not p.is_symlink()}
    assert "570.86.15" in version
    assert libraries == {"libcuda.so.570.124.06", "libnvidia-ml.so.570.124.06"}


@pytest.mark.parametrize(("name", "units"), [("h100x8", {"nvidia-fabricmanager", "nvidia-persistenced"}),
                                            ("l40sx2", {"nvidia-persistenced"})])  # fmt: skip
def test_daemons_are_enabled_where_the_profile_has_them(root: Path, name: str, units: set[str]) -> None:
    gpu.install(root, name)
    wants = root / "etc/systemd/system/multi-user.target.wants"
    assert {path.name for path in wants.iterdir()} == {f"{unit}.service" for unit in units}
    for unit in units:
        text = (root / f"usr/lib/systemd/system/{unit}.service").read_text()
        program = re.search(r"^ExecStart=/(\S+)$", text, re.MULTILINE)
        assert program is not None
        assert (root / program[1]).is_file()


def test_profile_json_says_what_the_dataclasses_say(root: Path) -> None:
    gpu.install(root, "ecc")
    data = json.loads((root / "usr/share/standin-nvidia/profile.json").read_text())
    healthy, faulty = data["gpus"]
    assert (healthy["ecc_volatile_uncorrectable"], healthy["remap_pending"]) == (0, False)
    assert faulty["ecc_volatile_uncorrectable"] > 0
    assert faulty["remap_pending"] is True
    assert faulty["remap_failure"] is False
