"""`bundle push` and `bundle load` against the bare tools, on the same images, in turns, with storages that are new each time.

Push is held against `skopeo copy --all --preserve-digests`, an image after the other, into the same registry. Load is
held against what a person does at a node: tar over ssh, and `podman pull` from the layout, an image after the other;
that is the library of skopeo, which a node need not have. Both are done with few and with many bytes: so what every
call takes (Ansible reads the node first) is told apart from what a byte takes, and memory is seen to stay.

Prints medians and rates. Exit code 1 when a bound is broken: less than 0.9 of the bare tool's rate, counted with all
that a call takes for push, and by the byte for load; or memory that grows with the bundle by more than a quarter.
"""

# ruff: noqa: T201 - its table is for a person at a terminal

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import shlex
import shutil
import statistics
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.labs import Nodes
from tests.registry.tiny import OCI, Tiny
from tests.unit import site_bundles
from vllm_node.bundle import oci
from vllm_node.images import skopeo
from vllm_node.lab import registry
from vllm_node.lab.lab import Lab
from vllm_node.lab.node import Spec
from vllm_node.paths import project_root

RATE_LIMIT = 0.9
MEMORY_LIMIT = 1.25
REPEATS = int(os.environ.get("REPEATS", "3"))
LAB, NODE = "bench", "a"
NAMES = ("prometheus", "alertmanager", "node_exporter", "grafana")
FEW, MANY = 32 << 20, 256 << 20  # bytes of a layer; there are two in each image
LAYERS = 2
HOST = f"{registry.HOST}:{registry.PORT}"


@dataclass
class Times:
    """Seconds, and the peak memory of the largest process in MiB, of each run."""

    seconds: list[float] = field(default_factory=list)
    memory: list[float] = field(default_factory=list)

    @property
    def median_s(self) -> float:
        return statistics.median(self.seconds)


def layer(size: int) -> tuple[bytes, str]:
    """A layer that unpacks to a file of that size, as it travels, and the digest of what it unpacks to."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        entry = tarfile.TarInfo("what")
        entry.size = size
        tar.addfile(entry, io.BytesIO(os.urandom(size)))
    unpacked = file.getvalue()
    return gzip.compress(unpacked, 0, mtime=0), f"sha256:{hashlib.sha256(unpacked).hexdigest()}"


def bundle(folder: Path, size: int) -> Path:
    """A bundle of images that hold nothing but bytes; made once, and never in memory as a whole."""
    images, layers = {}, folder.with_name(f"{folder.name}.layers")
    layers.mkdir()
    borrowed = {}
    for name in NAMES:
        image, listed, unpacked = Tiny(), [], []
        for _ in range(LAYERS):
            content, digest = layer(size)
            stored = f"sha256:{hashlib.sha256(content).hexdigest()}"
            borrowed[stored] = layers / stored.removeprefix("sha256:")
            borrowed[stored].write_bytes(content)
            listed.append({"mediaType": OCI["layer"], "digest": stored, "size": len(content)})
            unpacked.append(digest)
        rootfs = {"type": "layers", "diff_ids": unpacked}
        config = {"os": "linux", "architecture": "amd64", "config": {}, "rootfs": rootfs}
        image._manifest(json.dumps(config).encode(), ())
        said = {**json.loads(image.top), "layers": listed}
        image.manifests.clear()
        image.top = json.dumps(said).encode()
        mine = {"mediaType": OCI["manifest"], "digest": image.digest, "size": len(image.top)}
        image.manifests[image.digest] = image.top
        images[name] = image.index([{**mine, "platform": {"os": "linux", "architecture": "amd64"}}])
    site_bundles.write(folder, images, host=HOST, borrowed=borrowed)
    shutil.rmtree(layers)
    return folder


# In a process of its own: a child begins with the peak of whoever has made it, and this one has held whole layers.
_MEASURE = """
import resource, subprocess, sys, time
began = time.monotonic()
done = subprocess.run(sys.argv[1:], stdout=sys.stderr, stdin=subprocess.DEVNULL)
print(time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024)
sys.exit(done.returncode)
"""


def timed(argv: list[str], times: Times, env: dict[str, str] | None = None) -> None:
    """Run a command, which has to succeed."""
    words = [sys.executable, "-c", _MEASURE, *argv]
    done = subprocess.run(words, cwd=project_root(), env=env, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{shlex.join(argv)[:200]} failed:\n{done.stderr[-3000:]}")
    took_s, memory = map(float, done.stdout.split())
    times.seconds.append(took_s)
    times.memory.append(memory)


@contextmanager
def new_registry() -> Iterator[tuple[registry.Own, Path]]:
    """An empty registry, with the file of its account."""
    with tempfile.TemporaryDirectory() as name, registry.own(Path(name)) as own:
        authfile = Path(name) / "auth.json"
        subprocess.run(
            ["skopeo", "login", f"--authfile={authfile}", f"--cert-dir={own.ca_dir}", f"--username={registry.USERNAME}", "--password-stdin", own.address],
            input=own.password, text=True, check=True, capture_output=True,
        )  # fmt: skip
        yield own, authfile


def push(source: Path, times: Times) -> None:
    """By this toolkit."""
    with new_registry() as (own, authfile):
        words = ["bundle", "push", str(source), "--registry", own.address, "--no-verify"]
        words += ["--authfile", str(authfile), "--cert-dir", str(own.ca_dir)]
        timed([sys.executable, "-m", "vllm_node", *words], times)


def push_by_hand(source: Path, times: Times) -> None:
    """By skopeo alone."""
    with new_registry() as (own, authfile):
        lines = []
        for name in NAMES:
            words = ["skopeo", "copy", "--quiet", "--all", "--preserve-digests", f"--dest-authfile={authfile}", f"--dest-cert-dir={own.ca_dir}"]
            lines.append(shlex.join([*words, f"oci:{source / 'images'}:{name}", skopeo.docker(f"{own.address}/x/{name}", tag="1")]))
        timed(["sh", "-ec", "\n".join(lines)], times)


class Node:
    """A lab node, emptied before each run."""

    def __init__(self, nodes: Nodes, sources: tuple[Path, ...]) -> None:
        self.nodes = nodes
        known = nodes.lab.inventory()["all"]["vars"]["images_lock"]
        self.variables: dict[Path, str] = {}
        for source in sources:
            named = dict(oci.read_index(source / "images"))
            lock = {name: {**known[name], "repository": f"{HOST}/x/{name}", "digest": named[name].digest} for name in NAMES}
            self.variables[source] = json.dumps({"images_lock": lock, "vllm_instances": [], "dcgm_exporter_enabled": False})

    def empty(self) -> None:
        self.nodes.shell(NODE, "podman rmi --all --force >/dev/null 2>&1; rm -rf /var/lib/vllm-node /root/layout; sync")

    def load(self, source: Path, times: Times) -> None:
        """By this toolkit."""
        self.empty()
        words = ["bundle", "load", str(source), "-i", "inventories/lab", "-l", NODE, "--no-verify", "-e", self.variables[source]]
        timed([sys.executable, "-m", "vllm_node", *words], times, self.nodes.environment())

    def by_hand(self, source: Path, times: Times) -> None:
        """By tar, ssh and podman."""
        self.empty()
        ssh = shlex.join(self.nodes.lab.ssh(NODE))
        images = dict(oci.read_index(source / "images"))
        index = oci.index_text([(f"{HOST}/x/{name}@{image.digest}", image) for name, image in images.items()])
        lines = [
            f"{ssh} 'mkdir -p /root/layout && cat > /root/layout/index.json' <<'END'\n{index}END",
            f"tar -C {source}/images --exclude=index.json -cf - . | {ssh} tar -C /root/layout -xf -",
            *(f"{ssh} podman pull --quiet oci:/root/layout:{HOST}/x/{name}@{image.digest}" for name, image in images.items()),
            f"{ssh} rm -r /root/layout",
        ]
        timed(["bash", "-ec", "set -o pipefail\n" + "\n".join(lines)], times)


Run = Callable[[Path, Times], None]


def compare(what: str, ours: Run, bare: Run, few: Path, many: Path) -> tuple[float, float, float]:
    """Print the medians; returns ratios of the rates with all that a call takes, by the byte, and that of the memory."""
    times = {(kind, source): Times() for kind in ("ours", "bare") for source in (few, many)}
    for number in range(REPEATS):
        # In turns: whatever the machine does meanwhile hits both.
        for kind, run in sorted((("ours", ours), ("bare", bare)), reverse=number % 2 == 1):
            for source in (few, many):
                run(source, times[kind, source])
    size = {source: sum(path.stat().st_size for path in (source / "images/blobs/sha256").iterdir()) / 1e6 for source in (few, many)}
    rates = {}
    for kind in ("ours", "bare"):
        small, large = times[kind, few].median_s, times[kind, many].median_s
        rates[kind] = (size[many] / large, (size[many] - size[few]) / (large - small))
        fixed_s = large - size[many] / rates[kind][1]
        print(
            f"{what:<6} {kind:<5} {size[few]:>6.0f} MB {small:>6.1f} s   {size[many]:>6.0f} MB {large:>6.1f} s   {rates[kind][0]:>6.0f} MB/s"
            f"   by the byte {rates[kind][1]:>6.0f} MB/s and {fixed_s:>5.1f} s a call   memory {max(times[kind, few].memory):>5.0f} and {max(times[kind, many].memory):>5.0f} MiB",
            flush=True,
        )
    memory = max(times["ours", many].memory) / max(times["ours", few].memory)
    return rates["ours"][0] / rates["bare"][0], rates["ours"][1] / rates["bare"][1], memory


def main() -> int:
    """Run both comparisons and print their tables."""
    nodes = Nodes(LAB)
    with tempfile.TemporaryDirectory() as name:
        few, many = bundle(Path(name) / "few", FEW), bundle(Path(name) / "many", MANY)
        pushed = compare("push", push, push_by_hand, few, many)
        Lab.up(LAB, [])
        try:
            nodes.make(Spec(NODE))
            node = Node(nodes, (few, many))
            loaded = compare("load", node.load, node.by_hand, few, many)
        finally:
            found = Lab.find(LAB)
            if found is not None:
                found.down()
    print(f"push: {pushed[0]:.2f} of bare skopeo's rate, by the byte {pushed[1]:.2f} (at least {RATE_LIMIT} of the first)")
    print(f"load: {loaded[0]:.2f} of the rate by hand, by the byte {loaded[1]:.2f} (at least {RATE_LIMIT} of the second)")
    print(f"memory with {MANY // FEW} times the bytes: push {pushed[2]:.2f}, load {loaded[2]:.2f} (at most {MEMORY_LIMIT})")
    good = pushed[0] >= RATE_LIMIT and loaded[1] >= RATE_LIMIT and max(pushed[2], loaded[2]) <= MEMORY_LIMIT
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
