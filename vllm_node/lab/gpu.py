"""NVIDIA hardware of a lab node that is not there: profiles, and what the driver's packages would install.

The numbers are plausible, the UUIDs and serials made up. `install` writes into a root filesystem before it
boots; the programs that it copies (`standins/`) read the same profile from
`/usr/share/standin-nvidia/profile.json`.
"""

from __future__ import annotations

import json
import shutil
import uuid
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from vllm_node.lab.standin_libcuda import libcuda

STANDINS = Path(__file__).resolve().parent / "standins"
SHARE = Path("usr/share/standin-nvidia")
LIB_DIR = Path("usr/lib/x86_64-linux-gnu")
UNIT_DIR = Path("usr/lib/systemd/system")

_NAMESPACE = uuid.UUID("5f3a1f0e-9a55-4a63-8f6e-7f0f6e0d1c11")
_NULL_DEVICE = "1:3"  # the same device as /dev/null: opening it does no harm and needs no driver
_MODULES = "".join(
    f"install {module} /bin/true\n" for module in ("nvidia", "nvidia_uvm", "nvidia_modeset", "nvidia_drm")
)  # so that modprobe and modules-load.d succeed, as they do where the driver is


@dataclass(frozen=True)
class Mig:
    """One MIG device. `gi`, `ci`: GPU and compute instance; the minors are those of /dev/nvidia-caps."""

    index: int
    gi: int
    ci: int
    profile: str
    memory_mib: int
    multiprocessors: int
    uuid: str

    @property
    def cap_minors(self) -> tuple[int, int]:
        """Minors of the access capability of the GPU instance and of its compute instance.

        Each GPU instance has nine minors (its own and eight compute instances), the first three are for
        config, monitor and none; true for the first GPU only, the others have blocks of their own.
        """
        base = 3 + 9 * self.gi
        return base, base + 1 + self.ci


@dataclass(frozen=True)
class Gpu:
    """One GPU. Memory in MiB, power in W, clocks in MHz; `pci` as the driver's folders in /proc write it."""

    index: int
    name: str
    architecture: str
    compute_capability: str
    pci: str
    pci_device_id: str
    uuid: str
    serial: str
    memory_mib: int
    reserved_mib: int
    power_limit_w: int
    idle_power_w: int
    sm_clock_max_mhz: int
    mem_clock_mhz: int
    slowdown_temp_c: int
    hbm: bool
    mig_capable: bool
    mig: tuple[Mig, ...] = ()
    ecc_volatile_uncorrectable: int = 0
    ecc_aggregate_uncorrectable: int = 0
    remapped_uncorrectable: int = 0
    remap_pending: bool = False
    remap_failure: bool = False


@dataclass(frozen=True)
class Profile:
    """Hardware and driver of a node. `driver` is the version that is loaded, `library` that of the files.

    `cuinit` is the CUresult that cuInit returns in a container that has the GPUs.
    """

    name: str
    gpus: tuple[Gpu, ...]
    driver: str = "570.86.15"
    library: str = "570.86.15"
    cuda: str = "12.8"
    toolkit: str = "1.20.0"
    cdi_version: str = "0.5.0"
    nvswitches: tuple[str, ...] = ()
    fabric_manager: bool = False
    persistenced: bool = True
    cuinit: int = 0


_H100 = Gpu(
    index=0, name="NVIDIA H100 80GB HBM3", architecture="Hopper", compute_capability="9.0", pci="",
    pci_device_id="233010DE", uuid="", serial="", memory_mib=81559, reserved_mib=551, power_limit_w=700,
    idle_power_w=68, sm_clock_max_mhz=1980, mem_clock_mhz=2619, slowdown_temp_c=87, hbm=True,
    mig_capable=True,
)  # fmt: skip
_A100 = replace(
    _H100, name="NVIDIA A100-SXM4-80GB", architecture="Ampere", compute_capability="8.0",
    pci_device_id="20B210DE",
    memory_mib=81920, reserved_mib=869, power_limit_w=400, idle_power_w=61, sm_clock_max_mhz=1410,
    mem_clock_mhz=1593, slowdown_temp_c=89,
)  # fmt: skip
_L40S = replace(
    _H100, name="NVIDIA L40S", architecture="Ada Lovelace", compute_capability="8.9",
    pci_device_id="26B910DE",
    memory_mib=46068, reserved_mib=585, power_limit_w=350, idle_power_w=35, sm_clock_max_mhz=2520,
    mem_clock_mhz=9001, slowdown_temp_c=92, hbm=False, mig_capable=False,
)  # fmt: skip


def _made_up_uuid(prefix: str, *what: object) -> str:
    return f"{prefix}-{uuid.uuid5(_NAMESPACE, '/'.join(map(str, what)))}"


def _gpus(profile: str, model: Gpu, buses: str) -> tuple[Gpu, ...]:
    return tuple(
        replace(
            model,
            index=index,
            pci=f"0000:{bus}:00.0",
            uuid=_made_up_uuid("GPU", profile, index),
            serial=f"16500000{index:05d}",
        )
        for index, bus in enumerate(buses.split())
    )


def _mig_devices(profile: str) -> tuple[Mig, ...]:
    slices = [
        (2, "3g.40gb", 40192, 42),
        (3, "2g.20gb", 19968, 28),
        (9, "1g.10gb", 9728, 14),
        (10, "1g.10gb", 9728, 14),
    ]
    return tuple(
        Mig(index, gi, 0, size, memory, processors, _made_up_uuid("MIG", profile, gi))
        for index, (gi, size, memory, processors) in enumerate(slices)
    )


def _profiles() -> dict[str, Profile]:
    (split,) = _gpus("mig", _A100, "01")
    healthy, faulty = _gpus("ecc", _A100, "17 65")
    faulty = replace(
        faulty,
        ecc_volatile_uncorrectable=3,
        ecc_aggregate_uncorrectable=3,
        remapped_uncorrectable=1,
        remap_pending=True,
    )
    switches = tuple(f"0000:{bus}:00.0" for bus in ("07", "08", "09", "0a"))
    found = [
        Profile(
            "h100x8",
            _gpus("h100x8", _H100, "19 3b 4c 5d 9b bb cb db"),
            nvswitches=switches,
            fabric_manager=True,
        ),
        Profile("a100x4", _gpus("a100x4", _A100, "01 41 81 c1")),
        Profile("l40sx2", _gpus("l40sx2", _L40S, "21 e1")),
        Profile("mig", (replace(split, mig=_mig_devices("mig")),)),
        Profile("ecc", (healthy, faulty)),
        Profile("mismatch", _gpus("mismatch", _L40S, "21 e1"), library="570.124.06", cuinit=803),
        Profile("none", ()),
    ]
    return {profile.name: profile for profile in found}


PROFILES = _profiles()


def as_json(profile: Profile) -> str:
    """Text of profile.json: the dataclasses' fields, and `cap_minors` of each MIG device."""
    data = asdict(profile)
    for gpu, entry in zip(profile.gpus, data["gpus"], strict=True):
        for mig, slot in zip(gpu.mig, entry["mig"], strict=True):
            slot["cap_minors"] = mig.cap_minors
    return json.dumps(data, indent=2) + "\n"


def install(root: Path, profile: str) -> None:
    """Write what hardware profile `profile` needs into the root filesystem `root`, before it boots.

    Raises ValueError for a profile that does not exist. `none` writes nothing.
    """
    if profile not in PROFILES:
        raise ValueError(f"no hardware profile {profile!r}; there are: {', '.join(PROFILES)}")
    hardware = PROFILES[profile]
    if not hardware.gpus:
        return
    _write(root / SHARE / "profile.json", as_json(hardware))
    for program in ("nvidia-smi", "nvidia-ctk", "nvidia-modprobe"):
        _copy_program(root, program, program)
    _libraries(root, hardware)
    _proc_driver(root, hardware)
    _write(root / "usr/lib/tmpfiles.d/standin-nvidia.conf", _device_nodes(hardware))
    _write(root / "usr/lib/modprobe.d/standin-nvidia.conf", _MODULES)
    if hardware.persistenced:
        _daemon(root, "nvidia-persistenced", "nvidia-persistenced")
    if hardware.fabric_manager:
        _daemon(root, "nvidia-fabricmanager", "nv-fabricmanager")


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def _link(path: Path, target: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.symlink_to(target)


def _copy_program(root: Path, standin: str, name: str) -> None:
    path = root / "usr/bin" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(STANDINS / standin, path)
    path.chmod(0o755)


def _libraries(root: Path, hardware: Profile) -> None:
    for library, content in (("libnvidia-ml.so", b""), ("libcuda.so", libcuda(hardware.cuinit))):
        path = root / LIB_DIR / f"{library}.{hardware.library}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        _link(root / LIB_DIR / f"{library}.1", path.name)


def _proc_driver(root: Path, hardware: Profile) -> None:
    """The driver's part of /proc, bound over the kernel's empty /proc/driver by a mount unit."""
    folder = root / SHARE / "proc-driver"
    _write(
        folder / "nvidia/version",
        f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {hardware.driver}  Thu Jan 23 03:10:02 UTC 2025\n"
        "GCC version:  gcc version 11.5.0 (stand-in)\n",
    )
    for gpu in hardware.gpus:
        _write(folder / "nvidia/gpus" / gpu.pci / "information", _information(gpu, hardware.driver))
        for mig in gpu.mig:
            instance = folder / f"nvidia/capabilities/gpu{gpu.index}/mig/gi{mig.gi}"
            for place, minor in zip((instance, instance / f"ci{mig.ci}"), mig.cap_minors, strict=True):
                text = f"DeviceFileMinor: {minor}\nDeviceFileMode: 292\nDeviceFileModify: 1\n"
                _write(place / "access", text)
    for number, switch in enumerate(hardware.nvswitches):
        text = f"BIOS Version: 96.10.57.00.01\nDevice Minor: {number}\n"
        _write(folder / "nvidia-nvswitch/devices" / switch, text)
    _write(
        root / UNIT_DIR / "proc-driver.mount",
        "[Unit]\nDescription=Stand-in for the NVIDIA driver's part of /proc\n\n"
        f"[Mount]\nWhat=/{SHARE}/proc-driver\nWhere=/proc/driver\nType=none\nOptions=bind\n",
    )
    _link(root / UNIT_DIR / "local-fs.target.wants/proc-driver.mount", "../proc-driver.mount")


def _information(gpu: Gpu, driver: str) -> str:
    lines = {
        "Model:": gpu.name,
        "IRQ:  ": str(100 + gpu.index),
        "GPU UUID:": gpu.uuid,
        "Video BIOS:": "96.00.74.00.0D",
        "Bus Type:": "PCIe",
        "DMA Size:": "52 bits",
        "DMA Mask:": "0xfffffffffffff",
        "Bus Location:": gpu.pci,
        "Device Minor:": str(gpu.index),
        "GPU Firmware:": driver,
        "GPU Excluded:": "No",
    }
    return "".join(f"{key} \t {value}\n" for key, value in lines.items())


def _device_nodes(hardware: Profile) -> str:
    """tmpfiles.d lines for what the driver's udev rules would make; uvm nodes are left to nvidia-modprobe."""
    names = [f"nvidia{gpu.index}" for gpu in hardware.gpus] + ["nvidiactl", "nvidia-modeset"]
    if hardware.nvswitches:
        names.append("nvidia-nvswitchctl")
        names += [f"nvidia-nvswitch{number}" for number in range(len(hardware.nvswitches))]
    minors = sorted({minor for gpu in hardware.gpus for mig in gpu.mig for minor in mig.cap_minors})
    lines = ["# Stand-in device nodes of the NVIDIA driver.", "d /run/standin-nvidia 0755 root root -"]
    if minors:
        lines.append("d /dev/nvidia-caps 0755 root root -")
        names += [f"nvidia-caps/nvidia-cap{minor}" for minor in (1, 2, *minors)]
    lines += [f"c /dev/{name} 0666 root root - {_NULL_DEVICE}" for name in names]
    return "\n".join(lines) + "\n"


def _daemon(root: Path, unit: str, program: str) -> None:
    """A service with a socket in /run, enabled as its package would; the socket lives as long as it runs."""
    _copy_program(root, "nvidia-daemon", program)
    _write(
        root / UNIT_DIR / f"{unit}.service",
        f"[Unit]\nDescription=Stand-in for {unit}\nAfter=proc-driver.mount\n\n"
        f"[Service]\nType=notify\nExecStart=/usr/bin/{program}\nRuntimeDirectory={unit}\n\n"
        "[Install]\nWantedBy=multi-user.target\n",
    )
    wants = root / "etc/systemd/system/multi-user.target.wants" / f"{unit}.service"
    _link(wants, f"/{UNIT_DIR}/{unit}.service")
