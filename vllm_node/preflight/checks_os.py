"""Operating system, kernel, cgroup, SELinux, clock, and what could not be seen at all."""

from __future__ import annotations

import re
from collections.abc import Iterator

from vllm_node.preflight import tables
from vllm_node.preflight.findings import Finding, fail, finding, warn
from vllm_node.preflight.reading import Snapshot, at, listed, mapping, number, rows, text, version, words
from vllm_node.preflight.wanted import Wanted

# By age of the policy, the newest first; the role gpu_runtime switches the first that is known.
GPU_BOOLEANS = ("container_use_xserver_devices", "container_use_devices")
_HEALTH_CHECK = re.compile(r"[0-9a-f]{64}(-[0-9a-f]+)?\.service$")
# Each of these has a finding of its own that says more.
_TOLD_ELSEWHERE = ("gpu.devices", "models.", "registry")


def system(snapshot: Snapshot, _: Wanted) -> Iterator[Finding]:
    """Whether this is a system on which the roles were tried."""
    seen, release = text(snapshot, "os", "id"), version(at(snapshot, "os", "version_id"))
    if seen is None:
        return
    floor = tables.OS_MINOR_FLOOR.get(release[0]) if release else None
    # CentOS Stream has no minor version: it is ahead of the next one.
    minor = release[1] if release and len(release) > 1 else None
    if seen in tables.OS_IDS and floor is not None and (minor is None or minor >= floor):
        return
    yield warn(
        "os.untested",
        f"{at(snapshot, 'os', 'name') or seen}",
        "The roles are made for Enterprise Linux 9.6 and later and 10; elsewhere paths and packages may "
        "differ.",
        "Nothing, if you know that it works here; otherwise install RHEL 9.6+ or 10, or a rebuild of it.",
    )


def kernel(snapshot: Snapshot, _: Wanted) -> Iterator[Finding]:
    """Kernel old enough to lack what podman and the driver expect."""
    release = version(at(snapshot, "kernel", "release"))
    if release and release < tables.KERNEL_FLOOR:
        yield warn(
            "kernel.old",
            f"kernel {at(snapshot, 'kernel', 'release')}",
            f"Nothing was tried below {tables.dotted(tables.KERNEL_FLOOR)}.",
            "Boot the distribution's current kernel.",
        )


def cgroup(snapshot: Snapshot, _: Wanted) -> Iterator[Finding]:
    """The unified cgroup tree."""
    if at(snapshot, "cgroup", "version") == 1:
        yield fail(
            "cgroup.version",
            "cgroup version 1 (or hybrid)",
            "Units, limits and the later Kubernetes need the unified tree, version 2.",
            "Remove systemd.unified_cgroup_hierarchy=0 from the kernel's command line (grubby "
            "--update-kernel=ALL "
            "--remove-args=...) and reboot.",
        )


def python(snapshot: Snapshot, _: Wanted) -> Iterator[Finding]:
    """Python on the node."""
    release = version(at(snapshot, "python"))
    if release and release < tables.PYTHON_FLOOR:
        yield fail(
            "python.version",
            f"Python {at(snapshot, 'python')}",
            f"The modules that run on the node need Python {tables.dotted(tables.PYTHON_FLOOR)}.",
            "Set ansible_python_interpreter to the platform's own Python, /usr/bin/python3.",
        )


def selinux(snapshot: Snapshot, wanted: Wanted) -> Iterator[Finding]:
    """SELinux enforcing, with a policy that knows how to let containers use a GPU."""
    mode = at(snapshot, "selinux", "mode")
    if mode in ("disabled", "permissive"):
        yield warn(
            "selinux.mode",
            f"SELinux is {mode}",
            "Containers are kept apart by one wall less, and what is tried here may fail on an enforcing "
            "node.",
            "Set SELINUX=enforcing in /etc/selinux/config and reboot (after `disabled`: with a relabel).",
        )
    booleans = mapping(snapshot, "selinux", "booleans")
    known = [name for name in GPU_BOOLEANS if name in booleans]
    if mode != "enforcing" or not wanted.gpu_instances:
        return
    if not known:
        yield fail(
            "selinux.boolean",
            f"SELinux is enforcing, and its policy knows neither {' nor '.join(GPU_BOOLEANS)}",
            "Containers are denied the GPU's device nodes, and vLLM then sees no GPU. Labels and SELinux are never "
            "switched off for it.",
            "Install a current container-selinux package (dnf upgrade container-selinux); where the site has a policy "
            "module of its own that lets containers use GPUs, name selinux.boolean in preflight_ignore.",
        )
    elif not wanted.selinux_boolean and not any(booleans[name] for name in known):
        yield warn(
            "selinux.boolean_off",
            f"{known[0]} is off, and gpu_runtime_selinux_boolean leaves it so",
            "Without it, only a policy module of the site's own lets containers use the GPU's device nodes.",
            f"Set gpu_runtime_selinux_boolean to true, or run: setsebool -P {known[0]} on",
        )


def clock(snapshot: Snapshot, wanted: Wanted) -> Iterator[Finding]:
    """Clock kept by a time service, and near the control host's."""
    skew = number(snapshot, "time", "skew_s")
    limits = wanted.limits
    if skew is not None and abs(skew) > limits.time_skew_warn_s:
        too_far = abs(skew) > limits.time_skew_s
        yield finding(
            "fail" if too_far else "warn",
            "time.skew",
            f"the node's clock is {abs(skew):.0f} s {'ahead of' if skew > 0 else 'behind'} the control "
            "host's",
            "Certificates look invalid and samples carry wrong times when clocks disagree.",
            "Point chronyd at the site's time server and run `chronyc makestep`.",
        )
    if at(snapshot, "time", "synchronized") is False:
        yield warn(
            "time.synchronized",
            "no time service keeps the clock",
            "It will drift, and measurements of several nodes cannot be compared.",
            "Enable chronyd with the site's time server.",
        )


def failed_units(snapshot: Snapshot, wanted: Wanted) -> Iterator[Finding]:
    """Failed units that are not ours."""
    failed = [
        name
        for name in words(snapshot, "units", "failed")
        # A run of podman's health check is a unit of its own; the container's health tells the same.
        if name not in wanted.components and not _HEALTH_CHECK.match(name)
    ]
    if failed:
        yield warn(
            "units.failed",
            f"failed: {listed(failed)}",
            "A unit that failed before the bring-up may be the cause of what fails later.",
            "Look at `systemctl status` of each; mend it, or `systemctl reset-failed` when it does not "
            "matter.",
        )


def unseen(snapshot: Snapshot, _: Wanted) -> Iterator[Finding]:
    """What the snapshot could not look at: no news is not good news."""
    gaps = [
        f"{what} ({text(row, 'why')})"
        for row in rows(snapshot, "unseen")
        if (what := text(row, "what")) and not what.startswith(_TOLD_ELSEWHERE)
    ]
    if gaps:
        yield warn(
            "snapshot.unseen",
            f"could not be seen: {listed(gaps)}",
            "Checks that need it were left out.",
            "Run as root (become: true), and mend what did not answer.",
        )


CHECKS = (system, kernel, cgroup, python, selinux, clock, failed_units, unseen)
