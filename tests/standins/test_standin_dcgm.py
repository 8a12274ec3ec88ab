"""The stand-in for dcgm-exporter, run as a program on loopback."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from vllm_node.lab import gpu

PROGRAM = gpu.STANDINS / "dcgm-exporter"
DEFAULT_COUNTERS = Path(__file__).parents[3] / "shared/data/metrics/dcgm-default-counters.csv"
COUNTERS = """\
# a comment
DCGM_FI_DEV_GPU_TEMP,    gauge, GPU temperature (in C).
DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION, counter, Energy (in mJ).
DCGM_FI_DEV_CLOCKS_EVENT_REASONS, gauge, Reasons.

DCGM_FI_DEV_XID_ERRORS,  gauge, Last XID.
DCGM_FI_DRIVER_VERSION,  label, Driver.
DCGM_EXP_XID_ERRORS_COUNT, gauge, XIDs in the window.
DCGM_EXP_GPU_HEALTH_STATUS, gauge, Health.
DCGM_FI_PROF_DRAM_ACTIVE, gauge, Memory interface.
"""
Sample = tuple[str, dict[str, str], float]


def sys_admin() -> bool:
    status = Path("/proc/self/status").read_text()
    found = re.search(r"^CapEff:\s+(\w+)$", status, re.MULTILINE)
    return found is not None and bool(int(found[1], 16) >> 21 & 1)


@dataclass
class Running:
    process: subprocess.Popen[str]
    address: str
    root: Path

    def get(self, path: str) -> tuple[int, str]:
        with urllib.request.urlopen(f"http://{self.address}{path}", timeout=5) as reply:
            return reply.status, reply.read().decode()

    def samples(self, name: str) -> list[Sample]:
        text = self.get("/metrics")[1]
        found = re.findall(rf"^{name}\{{(.*)\}} (\S+)$", text, re.MULTILINE)
        return [(name, dict(re.findall(r'(\w+)="([^"]*)"', labels)), float(value)) for labels, value in found]

    def wait_for(self, name: str, count: int) -> list[Sample]:
        """The samples of `name` once there are `count`; the last ones seen when that takes over 5 s."""
        deadline = time.monotonic() + 5
        while len(found := self.samples(name)) != count and time.monotonic() < deadline:
            time.sleep(0.05)
        return found


Start = Callable[..., Running]


@pytest.fixture
def make_root(tmp_path: Path) -> Callable[[str], Path]:
    def make(profile: str) -> Path:
        gpu.install(tmp_path, profile)
        (tmp_path / "run/standin-nvidia").mkdir(parents=True)
        (tmp_path / "dev").mkdir()
        for device in gpu.PROFILES[profile].gpus:
            (tmp_path / f"dev/nvidia{device.index}").touch()
        (tmp_path / "counters.csv").write_text(COUNTERS)
        return tmp_path

    return make


@pytest.fixture
def root(make_root: Callable[[str], Path]) -> Path:
    return make_root("l40sx2")


def environment(root: Path, **more: str) -> dict[str, str]:
    clean = {key: value for key, value in os.environ.items() if not key.startswith("DCGM_")}
    return {**clean, "STANDIN_NVIDIA_ROOT": str(root), **more}


@pytest.fixture
def start() -> Iterator[Start]:
    processes: list[subprocess.Popen[str]] = []

    def start_one(root: Path, *arguments: str, before: tuple[str, ...] = (), **more: str) -> Running:
        options = ["-f", str(root / "counters.csv"), "-a", "127.0.0.1:0", "-c", "100", *arguments]
        process = subprocess.Popen(
            [*before, sys.executable, str(PROGRAM), *options],
            env=environment(root, **more),
            stderr=subprocess.PIPE,
            text=True,
        )
        processes.append(process)
        assert process.stderr is not None
        for line in process.stderr:
            found = re.search(r'Listening on" address="(\S+)"', line)
            if found:
                return Running(process, found[1], root)
        raise AssertionError(f"ended with {process.wait()} before it listened")

    yield start_one
    for process in processes:
        process.kill()
        process.communicate()


def refused(root: Path, *arguments: str, **more: str) -> str:
    """What the exporter says when it does not start; it must end with 1."""
    result = subprocess.run(
        [sys.executable, str(PROGRAM), "-a", "127.0.0.1:0", "-f", str(root / "counters.csv"), *arguments],
        env=environment(root, **more),
        capture_output=True,
        text=True,
        check=False,
        timeout=10,
    )
    assert result.returncode == 1, result.stderr
    return result.stderr


# --- what it serves ---------------------------------------------------------------------------------------


def test_one_series_a_gpu_with_the_real_labels(start: Start, root: Path) -> None:
    found = start(root, NODE_NAME="node7").samples("DCGM_FI_DEV_GPU_TEMP")
    devices = gpu.PROFILES["l40sx2"].gpus
    assert [labels for _, labels, _ in found] == [
        {
            "gpu": str(device.index),
            "UUID": device.uuid,
            "pci_bus_id": "0000" + device.pci.upper(),
            "device": f"nvidia{device.index}",
            "modelName": "NVIDIA L40S",
            "hostname": "node7",
            "DCGM_FI_DRIVER_VERSION": "570.86.15",
        }
        for device in devices
    ]
    assert all(20 < value < 90 for _, _, value in found)


def test_help_and_type_come_from_the_counters_file(start: Start, root: Path) -> None:
    text = start(root).get("/metrics")[1]
    assert "# HELP DCGM_FI_DEV_GPU_TEMP GPU temperature (in C).\n# TYPE DCGM_FI_DEV_GPU_TEMP gauge\n" in text
    assert "# TYPE DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION counter\n" in text
    assert "# TYPE DCGM_FI_DRIVER_VERSION" not in text


def test_an_idle_gpu_has_the_idle_bit(start: Start, root: Path) -> None:
    assert [value for _, _, value in start(root).samples("DCGM_FI_DEV_CLOCKS_EVENT_REASONS")] == [1, 1]


def test_energy_grows_with_each_sample(start: Start, root: Path) -> None:
    exporter = start(root)
    name = "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"
    before = exporter.samples(name)
    time.sleep(0.5)
    after = exporter.samples(name)
    for (_, _, old), (_, _, new) in zip(before, after, strict=True):
        joules = (new - old) / 1000
        assert 35 * 0.2 < joules < 35 * 5


def test_health_is_200_and_ko_as_in_the_real_one(start: Start, root: Path) -> None:
    assert start(root).get("/health") == (200, "KO")


def test_mig_instances_have_series_of_their_own(start: Start, make_root: Callable[[str], Path]) -> None:
    found = start(make_root("mig")).samples("DCGM_FI_DEV_GPU_TEMP")
    assert [labels["GPU_I_ID"] for _, labels, _ in found] == ["2", "3", "9", "10"]
    assert len({labels["UUID"] for _, labels, _ in found}) == 1


def test_ecc_errors_fail_the_health_status(start: Start, make_root: Callable[[str], Path]) -> None:
    found = start(make_root("ecc")).samples("DCGM_EXP_GPU_HEALTH_STATUS")
    assert {labels["gpu"]: value for _, labels, value in found if labels["health_watch"] == "ALL"} == {
        "0": 0,
        "1": 20,
    }


@pytest.mark.parametrize(("version", "label"), [("4.8.2", "Hostname"), ("4.8.3", "hostname")])
def test_the_hostname_label_follows_the_version(start: Start, root: Path, version: str, label: str) -> None:
    ((_, labels, _), _) = start(root, STANDIN_DCGM_EXPORTER_VERSION=version).samples("DCGM_FI_DEV_GPU_TEMP")
    assert {"Hostname", "hostname"} & set(labels) == {label}


def test_no_hostname_leaves_the_label_out(start: Start, root: Path) -> None:
    ((_, labels, _), _) = start(root, "-n").samples("DCGM_FI_DEV_GPU_TEMP")
    assert "hostname" not in labels


def test_settings_from_the_environment(start: Start, root: Path) -> None:
    (root / "other.csv").write_text("DCGM_FI_DEV_FB_USED, gauge, Used.\n")
    process = subprocess.Popen(
        [sys.executable, str(PROGRAM)],
        env=environment(
            root,
            DCGM_EXPORTER_COLLECTORS=str(root / "other.csv"),
            DCGM_EXPORTER_LISTEN="127.0.0.1:0",
            DCGM_EXPORTER_INTERVAL="200",
        ),
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        found = re.search(r'address="(127\.0\.0\.1:\d+)"', process.stderr.readline())
        assert found is not None
        assert len(Running(process, found[1], root).samples("DCGM_FI_DEV_FB_USED")) == 2
    finally:
        process.kill()
        process.communicate()


def test_sigterm_ends_it_at_once(start: Start, root: Path) -> None:
    exporter = start(root, "-c", "30000")
    began = time.monotonic()
    exporter.process.send_signal(signal.SIGTERM)
    assert exporter.process.wait(timeout=5) == 0
    assert time.monotonic() - began < 2


# --- faults -----------------------------------------------------------------------------------------------


def fault(root: Path, **faults: object) -> None:
    """Written beside and moved in place: the exporter may read at any moment."""
    new = root / "run/standin-nvidia/new"
    new.write_text(json.dumps(faults))
    new.rename(root / "run/standin-nvidia/faults.json")


def test_an_xid_appears_when_it_happens_and_stays(start: Start, root: Path) -> None:
    exporter = start(root)
    assert exporter.samples("DCGM_FI_DEV_XID_ERRORS") == []
    zero = exporter.samples("DCGM_EXP_XID_ERRORS_COUNT")
    assert [("xid" in labels, value) for _, labels, value in zero] == [(False, 0), (False, 0)]
    fault(root, **{"1": {"DCGM_FI_DEV_XID_ERRORS": 79}})
    ((_, labels, value),) = exporter.wait_for("DCGM_FI_DEV_XID_ERRORS", 1)
    assert (labels["gpu"], labels["err_code"], value) == ("1", "79", 79)
    counts = {
        labels["gpu"]: (labels.get("xid"), n)
        for _, labels, n in exporter.samples("DCGM_EXP_XID_ERRORS_COUNT")
    }
    assert counts == {"0": (None, 0), "1": ("79", 1)}
    fault(root)
    time.sleep(0.3)
    assert len(exporter.samples("DCGM_FI_DEV_XID_ERRORS")) == 1


def test_the_xid_count_ends_with_its_window(start: Start, root: Path) -> None:
    exporter = start(root, "-x", "1000")
    fault(root, **{"0": {"DCGM_FI_DEV_XID_ERRORS": 31}})
    exporter.wait_for("DCGM_FI_DEV_XID_ERRORS", 1)
    deadline = time.monotonic() + 5
    while any("xid" in labels for _, labels, _ in exporter.samples("DCGM_EXP_XID_ERRORS_COUNT")):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert len(exporter.samples("DCGM_FI_DEV_XID_ERRORS")) == 1


def test_a_value_can_be_set(start: Start, root: Path) -> None:
    fault(root, **{"0": {"DCGM_FI_DEV_GPU_TEMP": 91}})
    assert start(root).samples("DCGM_FI_DEV_GPU_TEMP")[0][2] == 91


def test_with_every_gpu_lost_the_scrape_is_empty_and_fine(start: Start, root: Path) -> None:
    exporter = start(root)
    fault(root, lost=[0])
    assert len(exporter.wait_for("DCGM_FI_DEV_GPU_TEMP", 1)) == 1
    fault(root, lost=[0, 1])
    assert exporter.wait_for("DCGM_FI_DEV_GPU_TEMP", 0) == []
    assert exporter.get("/metrics") == (200, "")


# --- profiling --------------------------------------------------------------------------------------------


@pytest.mark.skipif(not sys_admin(), reason="needs CAP_SYS_ADMIN to show that profiling rows appear with it")
def test_profiling_rows_with_sys_admin(start: Start, root: Path) -> None:
    assert len(start(root).samples("DCGM_FI_PROF_DRAM_ACTIVE")) == 2


@pytest.mark.skipif(
    sys_admin() and not shutil.which("setpriv"), reason="setpriv is needed to drop CAP_SYS_ADMIN"
)
def test_no_profiling_rows_without_sys_admin(start: Start, root: Path) -> None:
    drop = ("setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin") if sys_admin() else ()
    exporter = start(root, before=drop)
    assert exporter.samples("DCGM_FI_PROF_DRAM_ACTIVE") == []
    assert len(exporter.samples("DCGM_FI_DEV_GPU_TEMP")) == 2


def test_an_unknown_profiling_row_is_skipped(start: Start, root: Path) -> None:
    (root / "counters.csv").write_text("DCGM_FI_PROF_COLOUR, gauge, x\nDCGM_FI_DEV_GPU_TEMP, gauge, y\n")
    assert len(start(root).samples("DCGM_FI_DEV_GPU_TEMP")) == 2


# --- what it refuses --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("DCGM_FI_DEV_GPU_TEMP, gauge", "expected 3 fields"),
        ("DCGM_FI_DEV_GPU_TEMP, gauge, in C, or so", "expected 3 fields"),
        ('DCGM_FI_DEV_GPU_TEMP, gauge, the "core"', 'bare \\"'),
        ("DCGM_FI_DEV_COLOUR, gauge, x", "could not find DCGM field"),
        ("DCGM_FI_DEV_GPU_TEMP_CELSIUS, gauge, a name of DCGM 4.6", "could not find DCGM field"),
        ("DCGM_EXP_COLOUR, gauge, x", "could not find DCGM field"),
        ("DCGM_FI_DEV_GPU_TEMP, Gauge, x", "could not find Prometheus metric type"),
        ("DCGM_FI_DEV_GPU_TEMP, histogram, x", "could not find Prometheus metric type"),
    ],
)
def test_a_bad_row_ends_it_and_is_named(root: Path, row: str, words: str) -> None:
    (root / "counters.csv").write_text(COUNTERS + row + "\n")
    message = refused(root)
    assert words in message
    assert json.dumps(row)[1:-1] in message


def test_a_quoted_help_may_hold_a_comma(start: Start, root: Path) -> None:
    (root / "counters.csv").write_text('DCGM_FI_DEV_GPU_TEMP,gauge,"in C, or so"\n')
    assert "# HELP DCGM_FI_DEV_GPU_TEMP in C, or so\n" in start(root).get("/metrics")[1]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--frobnicate"], "unrecognized arguments: --frobnicate"),
        (["--collect"], "unrecognized arguments: --collect"),
        (["-c", "ten"], "invalid int value"),
        (["-c", "0"], "above 0 ms"),
        (["-a", "9400"], "missing port in address"),
        (["-f", "/nowhere.csv"], "could not read the counters file"),
        (["--web-config-file", "/nowhere.yml"], "web config"),
        (["-r", "127.0.0.1:1"], "could not connect to the remote hostengine"),
    ],
)
def test_bad_options_end_it(root: Path, arguments: list[str], words: str) -> None:
    assert words in refused(root, *arguments)


@pytest.mark.parametrize(
    ("gone", "words"),
    [
        ("usr/lib/x86_64-linux-gnu/libnvidia-ml.so.*", "ERROR_LIBRARY_NOT_FOUND"),
        ("usr/share/standin-nvidia/profile.json", "ERROR_DRIVER_NOT_LOADED"),
        ("dev/nvidia?", "ERROR_NO_DEVICES"),
    ],
)
def test_no_start_without_what_cdi_brings(root: Path, gone: str, words: str) -> None:
    for path in root.glob(gone):
        path.unlink()
    assert words in refused(root)


def test_no_start_on_a_driver_mismatch(make_root: Callable[[str], Path]) -> None:
    assert "ERROR_LIB_RM_VERSION_MISMATCH" in refused(make_root("mismatch"))


def test_a_taken_port_ends_it(start: Start, root: Path) -> None:
    assert "in use" in refused(root, "-a", start(root).address)


@pytest.mark.skipif(
    not DEFAULT_COUNTERS.is_file(), reason="no shared/data beside the project: the real counters file"
)
def test_the_real_default_counters_are_accepted(start: Start, root: Path) -> None:
    rows = [
        line.split(",")
        for line in DEFAULT_COUNTERS.read_text().splitlines()
        if line.strip() and line[0] != "#"
    ]
    shutil.copyfile(DEFAULT_COUNTERS, root / "counters.csv")
    exporter = start(root)
    absent = {name for name, kind in ((row[0].strip(), row[1].strip()) for row in rows)
              if kind != "label" and not exporter.samples(name)}  # fmt: skip
    profiling = {row[0].strip() for row in rows if row[0].startswith("DCGM_FI_PROF_")}
    assert len(rows) > 20
    assert absent == {"DCGM_FI_DEV_XID_ERRORS"} | (set() if sys_admin() else profiling)
