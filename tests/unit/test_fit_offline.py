"""Plans for a folder on this machine, and what a snapshot reads of a model's folder."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.unit.fit_models import GIB, LLAMA
from tests.unit.node_code import utils
from vllm_node.cli import cli
from vllm_node.exit_codes import ExitCode
from vllm_node.fit.offline import memory_bytes, plan_folder

inspect = utils("snapshot_model").inspect
SMALL = {**LLAMA, "architectures": ["LlamaForCausalLM"], "num_hidden_layers": 2}


def file(*tensors: tuple[str, int]) -> bytes:
    """A safetensors file of two rows of bytes a tensor."""
    entries, at = {}, 0
    for name, size in tensors:
        entries[name] = {"dtype": "U8", "shape": [2, size // 2], "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(entries).encode()
    return struct.pack("<Q", len(text)) + text + bytes(at)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps({**SMALL, "id2label": {"0": "a"}}))
    (tmp_path / "tokenizer.json").write_text("{}")
    (tmp_path / "model-1.safetensors").write_bytes(file(("lm_head.weight", 64), ("model.layers.0.mlp.up_proj.weight", 128)))
    (tmp_path / "model-2.safetensors").write_bytes(file(("model.layers.2.mlp.up_proj.weight", 256)))
    return tmp_path


def index(folder: Path, **shards: str) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))


def test_a_snapshot_keeps_what_a_plan_needs_and_no_more(folder: Path) -> None:
    found = inspect("a", str(folder))
    assert found["config"]["num_hidden_layers"] == 2
    assert "id2label" not in found["config"]
    kinds = {"head": {"U8": 64}, "other": {"U8": 128}, "mtp": {"U8": 256}}
    assert found["weights"] == {"bytes": 448, "tensors": 3, "by_dtype": {"U8": 448}, "by_kind": kinds}


def test_the_same_weights_in_another_layout_are_not_counted_twice(folder: Path) -> None:
    (folder / "consolidated.safetensors").write_bytes(file(("output.weight", 512)))
    assert inspect("a", str(folder))["weights"]["bytes"] == 448


def test_only_what_the_index_names_is_counted(folder: Path) -> None:
    index(folder, **{"lm_head.weight": "model-1.safetensors"})
    assert inspect("a", str(folder))["weights"]["bytes"] == 192


@pytest.mark.parametrize("name", ["model-1.safetensors", "model-2.safetensors"])
def test_a_part_of_the_weights_is_no_figure(folder: Path, name: str) -> None:
    path = folder / name
    path.write_bytes(path.read_bytes()[:-1])
    assert inspect("a", str(folder))["weights"] is None
    path.unlink()
    index(folder, a="model-1.safetensors", b="model-2.safetensors")
    assert inspect("a", str(folder))["weights"] is None


def test_a_config_that_cannot_be_read_is_none(folder: Path) -> None:
    (folder / "config.json").write_text("{")
    assert inspect("a", str(folder))["config"] is None


@pytest.mark.parametrize(
    ("words", "size"),
    [("80GiB", 80 * GIB), ("80G", 80 * GIB), ("80 GB", 80 * GIB), ("80", 80 * GIB), ("81559MiB", 81559 << 20), ("0.5TiB", None),
     ("0", None), ("x", None), ("99999", None), ("-80", None)],
)  # fmt: skip
def test_sizes_of_memory(words: str, size: int | None) -> None:
    if size is not None:
        assert memory_bytes(words) == size
        return
    with pytest.raises(ValueError, match="is no"):
        memory_bytes(words)


def test_a_folder_is_planned(folder: Path) -> None:
    plan = plan_folder(folder, {"max-model-len": 4096}, gpu_bytes=24 * GIB)
    assert plan.verdict == "fits"
    assert plan.figure("weights_total").value == 448


def run(*words: object) -> tuple[int, str]:
    result = CliRunner().invoke(cli, ["plan", *map(str, words)])
    return result.exit_code, result.output


def test_the_verb_prints_a_table(folder: Path) -> None:
    code, said = run("--model", folder, "--gpu-memory", "24GiB", "--arg", "tensor-parallel-size=2")
    assert code == ExitCode.OK
    assert f"{folder.name}: FITS: " in said
    assert "weights in files" in said
    assert "tensor-parallel sizes: 1, 2 of up to 2" in said


def test_the_verb_prints_json(folder: Path) -> None:
    code, said = run("--model", folder, "--gpu-memory", "24GiB", "--json", "--vllm", "0.19.1")
    document: dict[str, Any] = json.loads(said)
    assert code == ExitCode.OK
    (plan,) = document["plans"]
    budget = next(figure for figure in plan["figures"] if figure["name"] == "budget")
    assert budget["high"] == pytest.approx(24 * GIB * 0.9)
    assert plan["verdict"] == "fits"


def test_what_does_not_fit_has_an_exit_code_of_its_own(folder: Path) -> None:
    asked = ("--model", folder, "--gpu-memory", "24GiB")
    assert run(*asked, "--arg", "kv-cache-memory-bytes=30G")[0] == ExitCode.VALIDATION
    assert run(*asked, "--arg", "tensor-parallel-size=3")[0] == ExitCode.VALIDATION


def test_the_cpu_build_takes_its_variable(folder: Path) -> None:
    code, said = run("--model", folder, "--node-memory", "64GiB", "--env", "VLLM_CPU_KVCACHE_SPACE=2", "--json")
    assert code == ExitCode.OK
    figures = {figure["name"]: figure["value"] for figure in json.loads(said)["plans"][0]["figures"]}
    assert figures["kv_memory"] == 2 * GIB
    assert figures["block_size"] == 128


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "Give HOST and -i INVENTORY"),
        (("gpu1",), "Give -i INVENTORY"),
        (("gpu1", "--gpus", "2"), "--gpus: only with --model"),
        (("gpu1", "--arg", "a=1"), "--arg: only with --model"),
        (("gpu1", "--model", "FOLDER"), "either HOST, or --model"),
        (("--model", "FOLDER"), "Give --gpu-memory SIZE"),
        (("--model", "FOLDER", "--gpu-memory", "8", "--node-memory", "8"), "Give --gpu-memory SIZE"),
        (("--model", "FOLDER", "--gpu-memory", "much"), "'much' is no size of memory"),
        (("--model", "FOLDER", "--gpu-memory", "8", "--arg", "tensor-parallel-size=x"), "'x' is no whole number"),
        (("--model", "FOLDER", "--gpu-memory", "8", "--arg", "=x"), "'=x' is no KEY=VALUE"),
        (("--model", "FOLDER", "--gpu-memory", "8", "--vllm", "new"), "'new' is no version"),
        (("--model", "FOLDER", "--gpu-memory", "8", "-i", "inventories/lab"), "-i and -e have no part"),
    ],
)
def test_calls_that_are_refused(folder: Path, words: tuple[str, ...], said: str) -> None:
    code, output = run(*(str(folder) if word == "FOLDER" else word for word in words))
    assert code == ExitCode.USAGE
    assert said in output


def test_a_folder_that_is_no_model(tmp_path: Path) -> None:
    code, output = run("--model", tmp_path, "--gpu-memory", "8")
    assert code == ExitCode.USAGE
    assert "config.json" in output
