"""A lab node: a booted Debian root with real systemd and podman, an overlay over the cached root.

The layers of a node lie in its folder; podman's storage is bound from outside of the overlay, because an overlay
cannot be stacked on an overlay.
"""

from __future__ import annotations

import os
import secrets
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from vllm_node.lab import cgroups, gpu, network, process, roots
from vllm_node.lab.command import run
from vllm_node.lab.errors import LabError

_SYSTEM_CALLS = "@keyring bpf @mount add_key keyctl"
_BOOT_LIMIT_S = 90
# Under --keep-unit, systemd-nspawn leaves a reboot to whoever started it, and says so by this exit code. The groups
# come as words before `--`; "0" moves the process that writes it.
_AGAIN_AFTER_REBOOT = """
groups=
while [ "$1" != -- ]; do groups="$groups $1"; shift; done
shift
while :; do
  (for group in $groups; do echo 0 > "$group/cgroup.procs"; done; exec "$@")
  code=$?
  [ $code = 133 ] || exit $code
done
"""


@dataclass(frozen=True)
class Spec:
    """What a node is: its podman version (`roots.RELEASES`), GPU profile (`gpu.PROFILES`) and cgroup version."""

    name: str
    podman: str = "5.4"
    gpu: str = "h100x8"
    cgroup: int = 2


@dataclass(frozen=True)
class Place:
    """Where a node lives: its folder, address, bridge, and the name of its machine."""

    folder: Path
    machine: str
    address: str
    gateway: str
    bridge: str

    @property
    def root(self) -> Path:
        """The node's root filesystem as it sees it."""
        return self.folder / "root"


def create(spec: Spec, place: Place, public_key: str, hosts: dict[str, str], model: Path) -> str:
    """Lay out the node's root, ready to boot; returns its ssh host key (one line, without the host's name)."""
    for name in ("root", "upper", "work", "containers"):
        (place.folder / name).mkdir(parents=True, exist_ok=True)
    lower = roots.node_root(spec.podman)
    layers = f"lowerdir={lower},upperdir={place.folder / 'upper'},workdir={place.folder / 'work'}"
    run(["mount", "-t", "overlay", "overlay", "-o", layers, place.root])
    _write(place.root / "etc/hostname", f"{spec.name}\n")
    names = {"127.0.0.1": "localhost", place.address: spec.name, **hosts}
    _write(place.root / "etc/hosts", "".join(f"{ip}\t{name}\n" for ip, name in names.items()))
    # systemd ships an 80-container-host0.network with DHCP, which a higher number would lose to.
    _write(
        place.root / "etc/systemd/network/10-host0.network",
        f"[Match]\nName=host0\n[Network]\nAddress={place.address}/24\nLinkLocalAddressing=no\n",
    )
    _write(place.root / "root/.ssh/authorized_keys", public_key, 0o600)
    host_key = place.root / "etc/ssh/ssh_host_ed25519_key"
    run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", spec.name, "-f", host_key])
    gpu.install(place.root, spec.gpu)
    shutil.copytree(model, place.root / "srv/models" / model.name)
    return host_key.with_suffix(".pub").read_text().strip()


def boot(spec: Spec, place: Place) -> process.Process:
    """Boot the node; it is usable once `wait` returns."""
    env = {**os.environ}
    # The name of its network link is made from this, and the link of an ended node lingers for a moment.
    machine = f"{place.machine}-{secrets.token_hex(2)}"
    if spec.cgroup == 2:
        env["SYSTEMD_NSPAWN_UNIFIED_HIERARCHY"] = "1"
    words: list[str | Path] = [
        *("/bin/sh", "-c", _AGAIN_AFTER_REBOOT, "node"),
        *cgroups.make(place.machine),
        "--",
        *("systemd-nspawn", "--quiet", "-D", place.root, f"--machine={machine}", "--boot"),
        *("--register=no", "--keep-unit", "--console=read-only", "--capability=all"),
        *(f"--network-bridge={place.bridge}", f"--system-call-filter={_SYSTEM_CALLS}"),
        *("--bind=/dev/fuse", f"--bind={place.folder / 'containers'}:/var/lib/containers"),
        "--link-journal=no",
    ]
    if spec.cgroup == 1:
        # systemd 257 starts on the old hierarchy only when told twice.
        words.append("SYSTEMD_CGROUP_ENABLE_LEGACY_FORCE=1")
    return process.start(words, place.folder / "console.log", env)


def wait(place: Place, machine: process.Process, ssh: list[str]) -> None:
    """Wait until the node answers over ssh and has finished booting.

    Raises:
        LabError: it ended, or did not answer within 90 s; the text has the end of its console.
    """
    end = time.monotonic() + _BOOT_LIMIT_S
    while time.monotonic() < end and machine.alive:
        try:
            run([*ssh, "systemctl is-system-running --wait || true"], timeout_s=20)
        except LabError:
            time.sleep(0.2)
        else:
            return
    console = (place.folder / "console.log").read_text(errors="replace").splitlines()[-10:]
    raise LabError(f"node {place.machine} did not come up at {place.address}:\n" + "\n".join(console))


def destroy(place: Place, machine: process.Process | None) -> None:
    """End the node and remove all that was its own. Also right for a node that is half made or already dead."""
    if machine is not None:
        machine.kill()
    cgroups.remove(place.machine)
    for line in reversed(Path("/proc/self/mounts").read_text().splitlines()):
        target = line.split()[1].replace("\\040", " ")
        if Path(target) == place.folder or place.folder in Path(target).parents:
            run(["umount", "--lazy", target])
    if place.folder.exists():
        shutil.rmtree(place.folder)


def _write(path: Path, text: str, mode: int = 0o644) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)


def place(lab: str, folder: Path, name: str, subnet: str, number: int) -> Place:
    """The place of node `number` (counted from 0) of `lab`."""
    return Place(
        folder=folder / "nodes" / name,
        machine=f"{lab}-{name}",
        address=network.address(subnet, 11 + number),
        gateway=network.address(subnet, 1),
        bridge=network.bridge_name(lab),
    )
