"""Plans for the instances of a node: GPUs by their names, fabric, neighbours, and what preflight makes of it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.factories import changed, gpu, ids, instance, judged, model, snapshot, variables
from tests.unit.fit_models import GIB, LARGE, LLAMA, dense
from tests.unit.node_code import utils
from vllm_node.fit import site
from vllm_node.fit.machine import Machine, of_instance
from vllm_node.fit.reckoning import Case
from vllm_node.preflight import wanted_from
from vllm_node.preflight.wanted import Instance

links = utils("snapshot_links")


def node(config: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """The healthy node, with a model of this shape on it."""
    shape = LLAMA if config is None else config
    row = {**model(), "config": shape, "weights": dense(shape), "bytes": dense(shape)["bytes"]}
    found = changed(snapshot(), "models", [row])
    pairs = [[one, two, "NV18"] for one in range(4) for two in range(one + 1, 4)]
    return changed(found, "gpu", {**found["gpu"], "links": pairs, **more})


def wants(**changes: Any) -> dict[str, Any]:
    return changed(variables(), "vllm_instances", [instance(**changes)])


def machine(*gpus: str, **more: Any) -> Machine:
    return of_instance(node(**more), Instance("a", gpus=gpus))


def test_a_model_that_fits_gives_no_finding() -> None:
    assert judged(node()) == []


def test_a_model_that_does_not_fit_stops() -> None:
    found = [each for each in judged(node(LARGE), wants(gpus=["0"])) if each.id == "model.fit"]
    assert [each.level for each in found] == ["fail"]
    assert found[0].seen.startswith("instance llama: the weights alone take all memory that vLLM may use: vLLM may use ")
    assert "tensor-parallel-size: 4 on 4 GPUs (the instance has 1, the node 4)" in found[0].mend
    assert "vllm-node plan gpu1 llama" in found[0].mend


def test_a_model_that_may_not_fit_warns() -> None:
    site_ = wants(gpus=["0", "1"], args={"max-model-len": 16384})
    found = [each for each in judged(node(LARGE), site_) if each.id == "model.fit"]
    assert [each.level for each in found] == ["warn"]
    assert "One of: " in found[0].mend


def test_what_is_not_known_is_no_finding() -> None:
    for changes in ({"config": None}, {"weights": None, "bytes": None}):
        row = {**node(LARGE)["models"][0], **changes}
        assert "model.fit" not in ids(changed(node(LARGE), "models", [row]), wants(gpus=["0"]))
    assert "model.fit" not in ids(changed(node(LARGE), "gpu/devices", None), wants(gpus=["0"]))


def test_a_size_that_is_impossible_stops() -> None:
    found = [each for each in judged(node(), wants(gpus=["0", "1", "2"])) if each.id == "model.parallel"]
    assert [each.level for each in found] == ["fail"]
    assert "32 attention heads are not divisible by 3" in found[0].seen


MIG = [{"index": number, "gi": number, "ci": 0, "uuid": f"MIG-{number}", "memory_total_bytes": 40 * GIB} for number in (0, 1)]


def test_parts_of_a_gpu_are_no_two_gpus() -> None:
    devices = [{**gpu(0), "mig_mode": "Enabled", "mig": MIG}, gpu(1)]
    found = ids(node(devices=devices), wants(gpus=["0:0", "MIG-1"]))
    assert found["model.parallel"] == "fail"


def test_gpus_without_a_fabric_warn() -> None:
    found = ids(node(links=[[0, 1, "SYS"]], nvswitches=0), wants(gpus=["0", "1"]))
    assert found.get("model.parallel") == "warn"


@pytest.mark.parametrize(
    ("gpus", "more", "fabric"),
    [
        (("0",), {}, "single"),
        (("0", "1"), {}, "nvswitch"),
        (("0", "1"), {"nvswitches": 0}, "nvlink"),
        (("all",), {"nvswitches": 0}, "nvlink"),
        (("0", "1"), {"nvswitches": 0, "links": [[0, 1, "SYS"]]}, "none"),
        (("0", "1"), {"nvswitches": 0, "links": [[2, 3, "NV4"]]}, None),
        (("0", "1"), {"nvswitches": 0, "links": None}, None),
        (("0", "1"), {"links": None}, "nvswitch"),
    ],
)
def test_how_gpus_reach_each_other(gpus: tuple[str, ...], more: dict[str, Any], fabric: str | None) -> None:
    assert machine(*gpus, **more).fabric == fabric


def test_names_of_one_gpu_are_one_gpu() -> None:
    found = machine("0", gpu(0)["uuid"])
    assert found.gpus is not None
    assert [each.name for each in found.gpus] == ["0"]
    assert found.present == 4


def test_a_gpu_in_parts_is_its_parts() -> None:
    found = machine("all", devices=[{**gpu(0), "mig": MIG}])
    assert found.gpus is not None
    assert [each.name for each in found.gpus] == ["0:0", "0:1"]
    assert found.in_parts
    smallest = found.smallest
    assert smallest is not None
    assert smallest.usable is not None
    assert smallest.usable.low == smallest.usable.high == 40 * GIB


def test_what_the_driver_keeps_is_no_memory_for_vllm() -> None:
    known = machine("0", devices=[{**gpu(0), "memory_reserved_bytes": GIB}]).smallest
    assert known is not None
    assert known.usable is not None
    assert known.usable.best == 79 * GIB
    unknown = machine("0").smallest
    assert unknown is not None
    assert unknown.usable is not None
    assert unknown.usable.low < 79 * GIB < unknown.usable.high


def test_a_node_without_known_gpus_and_one_on_its_cpu() -> None:
    assert machine("0", devices=None).gpus is None
    assert machine().gpus == ()
    assert machine().memory_bytes == 512 * GIB


def test_a_neighbour_on_the_same_gpu_is_seen() -> None:
    both = [instance("llama", gpus=["0"], args={"gpu-memory-utilization": 0.5}), instance("b", gpus=["0"], port=8001)]
    found = wanted_from("gpu1", changed(variables(), "vllm_instances", both))
    case = site.case_of(node(), found, found.instances[0])
    assert isinstance(case, Case)
    # The tag of the image tells no version, so the share is that of new releases.
    assert case.machine.others == (("b", 0.92),)
    assert case.settings.utilization == 0.5


def test_settings_that_are_wrong_are_the_reason_of_no_plan() -> None:
    found = wanted_from("gpu1", wants(args={"max-model-len": "long"}))
    plan = site.plan_of(node(), found, found.instances[0])
    assert plan.verdict == "unknown"
    assert "max-model-len: 'long'" in plan.why
    assert plan.figure("kv_tokens").value is None


MATRIX = """\
\t\x1b[4mGPU0\tGPU1\tGPU2\tNIC0\tCPU Affinity\tNUMA Affinity\x1b[0m
GPU0\t X \tNV18\tSYS\tPIX\t0-47\t0
GPU1\tNV18\t X \tPHB\tSYS\t0-47\t0
GPU2\tSYS\tPHB\t X \tSYS\t48-95\t1
NIC0\tPIX\tSYS\tSYS\t X \t\t

Legend:

  X    = Self
  SYS  = Connection traversing PCIe
"""


def test_pairs_out_of_the_matrix() -> None:
    assert links.links_from_matrix(MATRIX) == [[0, 1, "NV18"], [0, 2, "SYS"], [1, 2, "PHB"]]


@pytest.mark.parametrize("text", ["", "No devices were found", "Failed to initialize NVML"])
def test_no_matrix_is_not_known(text: str) -> None:
    assert links.links_from_matrix(text) is None


def test_one_gpu_has_no_pair() -> None:
    assert links.links_from_matrix("\tGPU0\tCPU Affinity\nGPU0\t X \t0-3\n") == []
