"""A load on a node: a transient unit that ends by itself, with a container of a pinned image beside the server."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time

# Below the threads of the kernel that have to run, above all that has no such policy.
REAL_TIME = ("--property=CPUSchedulingPolicy=rr", "--property=CPUSchedulingPriority=20")


def run(*argv, limit_s=60):
    """A finished program, with its output as text."""
    return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=limit_s)


def is_running(unit):
    """Whether the unit is there and has not ended."""
    return run("systemctl", "is-active", "--quiet", unit + ".service").returncode == 0


def must_be_the_only(unit):
    """Raises RuntimeError where the unit runs already."""
    if is_running(unit):
        raise RuntimeError(
            "%s.service runs already on this node, and two loads would measure each other: wait for the other "
            "benchmark, or end what one left behind: systemctl stop %s.service" % (unit, unit)
        )


@contextlib.contextmanager
def fresh_folder(folder):
    """An empty folder that only root may read; it goes again when what is made in it fails: nobody collects that."""
    shutil.rmtree(folder, ignore_errors=True)
    os.mkdir(folder, 0o700)
    try:
        yield
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def runs_on(unit, wait_s, poll_s):
    """Whether the unit still runs after up to `wait_s`."""
    until = time.monotonic() + wait_s
    running = is_running(unit)
    while running and time.monotonic() < until:
        time.sleep(poll_s)
        running = is_running(unit)
    return running


def end(unit, stop_limit_s):
    """End the unit if it still runs; what it runs writes what it has."""
    if is_running(unit):
        run("systemctl", "stop", unit + ".service", limit_s=stop_limit_s + 30)


def bring(sent, folder):
    """Put files of this node ({name: path}) into `folder`; copied, as a container's root has no rights over others'."""
    for name, path in sent.items():
        shutil.copyfile(path, os.path.join(folder, os.path.basename(name)))
        os.unlink(path)


def real_time():
    """Properties that let a generator read its clock in time on a busy machine; none where the node refuses them.

    A generator that waits for the processor measures its own waiting. It uses a few per cent of a core.
    """
    probe = run("systemd-run", "--quiet", "--wait", "--collect", *REAL_TIME, "true")
    return REAL_TIME if probe.returncode == 0 else ()


def unit_words(unit, limit_s, stop_limit_s, cpus):
    """Words that start the unit; those of its container follow."""
    affinity = ["--property=CPUAffinity=" + cpus] if cpus else []
    return [
        *("systemd-run", "--quiet", "--collect", "--unit=" + unit, "--property=RuntimeMaxSec=%d" % limit_s),
        # Only podman hears that it has to end, and tells the container. What it starts for that must not be ended too.
        *("--property=KillMode=mixed", "--property=TimeoutStopSec=%d" % stop_limit_s),
        *("--property=LimitNOFILE=1048576", *affinity, *real_time()),
    ]


def container_words(unit, stop_limit_s):
    """Words of podman: what every load has, which is little."""
    return [
        *("podman", "run", "--rm", "--replace", "--name", unit, "--label", "io.vllm-node.component=load"),
        *("--pull=never", "--network=host", "--http-proxy=false", "--read-only", "--cap-drop=all", "--pids-limit=0"),
        *("--init", "--security-opt=no-new-privileges", "--log-driver=none", "--stop-timeout=%d" % (stop_limit_s - 10)),
        # The unit's limit of open files, and not podman's own, which some machines may not set.
        *("--ulimit=host", "--tmpfs=/tmp"),
    ]
