"""Images are asked what they can do before a unit is installed."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.labs import Nodes, Run
from tests.unit.role_code import ROOT
from tests.variants import variant
from vllm_node.lab import gpu
from vllm_node.lab.node import Spec
from vllm_node.lab.standin_libcuda import libcuda
from vllm_node.serving.flags import cache

pytestmark = pytest.mark.node
NODE = "asked"
# A small image with Python stands for vLLM's, of which only the page is wanted here.
PRINTER = "import sys\nsys.exit('no such flag') if sys.argv[1:] != ['--help=all'] else sys.stdout.write({page!r})"
INSTANCE = {"name": "tiny", "model": "/srv/models/tiny", "gpus": ["0"], "port": 8000}

class Site:
    """A node whose only instance runs the small image, under a tag that tells no version."""

    def __init__(self, nodes: Nodes) -> None:
        self.nodes = nodes
        lock = nodes.lab.inventory()["all"]["vars"]["images_lock"]
        page = (ROOT / "tests/unit/data/vllm-help.txt").read_text()
        image = variant(lock["dcgm_exporter"], Entrypoint=["python3", "-c", PRINTER.format(page=page)])
        self.digest = image["digest"]
        self.lock = {**lock, "vllm": {**image, "tag": "nightly"}}

    def run(self, verb: str, *, args: dict[str, Any] | None = None, **instance: Any) -> Run:
        off = ("dcgm_exporter", "node_exporter", "prometheus", "alertmanager", "grafana", "gateway")
        variables = {
            "images_lock": self.lock,
            "vllm_instances": [{**INSTANCE, "args": args or {}, **instance}],
            **{f"{name}_enabled": False for name in off},
        }
        return self.nodes.run(verb, limit=NODE, variables=variables)

    def libcuda(self, answer: int) -> None:
        """What cuInit answers on the node from now on."""
        place = f"/{gpu.LIB_DIR}/libcuda.so.{gpu.PROFILES['h100x8'].library}"
        text = base64.b64encode(libcuda(answer)).decode()
        # In place: the CDI specification mounts this very file.
        self.nodes.shell(NODE, f"echo {text} | base64 -d > {place}")

    @property
    def installed(self) -> str:
        """Units and containers of ours on the node."""
        return self.nodes.shell(NODE, "ls /etc/containers/systemd/*.container 2>&- ; podman ps --all --quiet").strip()


@pytest.fixture(scope="module")
def site(nodes: Nodes) -> Iterator[Site]:
    nodes.make(Spec(NODE))
    found = Site(nodes)
    # A session before this one has asked the same image.
    (cache.folder() / f"{found.digest.removeprefix('sha256:')}.json").unlink(missing_ok=True)
    yield found
    nodes.lab.remove(NODE)


def failure(run: Run) -> dict[str, Any]:
    assert run.code == 3, run.document
    (found,) = (one for one in run.host(NODE)["findings"] if one["level"] == "fail")
    assert found["host"] == NODE
    return dict(found)


def test_what_the_image_cannot_do_is_refused_before_a_unit_is_installed(site: Site) -> None:
    before = site.nodes.tree(NODE)

    site.libcuda(803)
    found = failure(site.run("up"))
    assert found["id"] == "image.cuda"
    assert "instance tiny" in found["seen"]
    assert "803 (CUDA_ERROR_SYSTEM_DRIVER_MISMATCH) with GPU 0" in found["seen"]
    assert site.installed == ""

    site.libcuda(0)
    assert cache.load(site.digest) is None
    found = failure(site.run("up", args={"max-num-seqss": 8, "max-model-len": 2048}))
    assert found["id"] == "instance.flags"
    assert "instance tiny, args max-num-seqss: vLLM of this image has no flag max-num-seqss" in found["seen"]
    assert found["mend"] == "Write max-num-seqs."
    assert site.installed == ""
    (kept,) = json.loads(
        site.nodes.shell(NODE, f"cat /var/lib/vllm-node/probe/{site.digest.removeprefix('sha256:')}.json")
    )["answers"].values()
    assert kept["cuinit"] == 0
    assert kept["libcuda"].endswith("/libcuda.so.1")

    # Preflight knows the flags of that digest from now on, whichever node it is for.
    assert cache.load(site.digest) is not None
    assert failure(site.run("preflight", args={"max-num-seqss": 8, "max-model-len": 2048}))["seen"] == found["seen"]

    assert site.run("down").code == 0
    assert site.nodes.tree(NODE) == before
