"""Model folders: whole ones pass, and each way to be incomplete is told in words."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.node_code import utils

model = utils("snapshot_model")
POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n"
SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")


def header(*tensors: dict[str, Any], size: int, **more: Any) -> bytes:
    """A safetensors file with tensors w0, w1, ... and `size` bytes of data."""
    entries = {f"w{number}": tensor for number, tensor in enumerate(tensors)}
    text = json.dumps({**entries, "__metadata__": {}, **more}).encode()
    return struct.pack("<Q", len(text)) + text + bytes(size)


def tensor(begin: int, end: int, dtype: str = "U8", shape: list[int] | None = None) -> dict[str, Any]:
    return {"dtype": dtype, "shape": [end - begin] if shape is None else shape, "data_offsets": [begin, end]}


def safetensors(*names: str) -> bytes:
    """A whole file with these tensors, of 64 bytes each."""
    tensors = {name: tensor(64 * at, 64 * at + 64) for at, name in enumerate(names)}
    return header(size=64 * len(names), **tensors)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"]}))
    (tmp_path / "tokenizer.json").write_text("{}")
    (tmp_path / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": {"a": SHARDS[0], "b": SHARDS[1], "c": SHARDS[1]}})
    )
    for shard, names in zip(SHARDS, ("a", "bc"), strict=True):
        (tmp_path / shard).write_bytes(safetensors(*names))
    return tmp_path


def inspect(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = model.inspect("a", str(folder))
    return found


def test_a_whole_model(folder: Path) -> None:
    found = inspect(folder)
    assert found["problems"] == []
    assert found["exists"] is True
    assert found["architectures"] == ["LlamaForCausalLM"]
    assert found["auto_map"] is False
    assert found["bytes"] == sum(path.stat().st_size for path in folder.iterdir())


def test_a_model_that_is_not_there(tmp_path: Path) -> None:
    found = inspect(tmp_path / "none")
    assert found["exists"] is False
    assert found["bytes"] is None


def write(name: str, content: str | bytes) -> Callable[[Path], Any]:
    data = content.encode() if isinstance(content, str) else content
    return lambda folder: (folder / name).write_bytes(data)


def remove(*names: str) -> Callable[[Path], Any]:
    def take_away(folder: Path) -> None:
        for name in names:
            (folder / name).unlink()

    return take_away


BROKEN: list[tuple[str, Callable[[Path], Any]]] = [
    (f"shard {SHARDS[1]} is missing", remove(SHARDS[1])),
    (f"shard {SHARDS[0]} is empty", write(SHARDS[0], "")),
    (f"shard {SHARDS[0]} is a git-lfs pointer", write(SHARDS[0], POINTER)),
    (f"shard {SHARDS[0]} is truncated", write(SHARDS[0], safetensors("a")[:-1])),
    (f"shard {SHARDS[0]} is longer than", write(SHARDS[0], safetensors("a") + b"x")),
    (f"shard {SHARDS[0]} has no safetensors header", write(SHARDS[0], b"\xff" * 40)),
    (
        f"shard {SHARDS[0]} has a header that cannot be read",
        write(SHARDS[0], struct.pack("<Q", 8) + b"{broken}" * 9),
    ),
    (
        f"shard {SHARDS[0]} has offsets that do not fit: tensor w1 leaves a gap of 8 bytes",
        write(SHARDS[0], header(tensor(0, 8), tensor(16, 24), size=24)),
    ),
    (
        f"shard {SHARDS[0]} has offsets that do not fit: tensor w1 overlaps",
        write(SHARDS[0], header(tensor(0, 8), tensor(4, 12), size=12)),
    ),
    (
        f"shard {SHARDS[0]} has a tensor w0 of 8 bytes, and BF16 [2, 4] takes 16",
        write(SHARDS[0], header(tensor(0, 8, "BF16", [2, 4]), size=8)),
    ),
    (
        f"shard {SHARDS[0]} has a header that gives tensor w0 no type or shape",
        write(SHARDS[0], header({"data_offsets": [0, 8]}, size=8)),
    ),
    (
        f"shard {SHARDS[0]} has a header that cannot be read",
        write(SHARDS[0], header({"data_offsets": [8, 0]}, size=8)),
    ),
    (f"shard {SHARDS[1]} lacks tensor b and 1 more, which the index places there", write(SHARDS[1], safetensors("a"))),
    ("b.safetensors.incomplete is a download that has not ended", write("b.safetensors.incomplete", "x")),
    ("shard extra.safetensors is empty", write("extra.safetensors", "")),
    ("there are no weights", remove(*SHARDS, "model.safetensors.index.json")),
    ("model.safetensors.index.json is no valid JSON", write("model.safetensors.index.json", "{")),
    ("model.safetensors.index.json has no weight_map", write("model.safetensors.index.json", "[]")),
    ("model.safetensors.index.json is a git-lfs pointer", write("model.safetensors.index.json", POINTER)),
    ("config.json is missing", remove("config.json")),
    ("config.json is no valid JSON", write("config.json", "{")),
    ("config.json holds no object", write("config.json", "[]")),
    ("the tokenizer is missing", remove("tokenizer.json")),
    ("tokenizer.json is empty", write("tokenizer.json", "")),
    ("tokenizer.json is a git-lfs pointer", write("tokenizer.json", POINTER)),
]


@pytest.mark.parametrize(("problem", "spoil"), BROKEN)
def test_an_incomplete_model_is_told_in_words(
    folder: Path, problem: str, spoil: Callable[[Path], Any]
) -> None:
    spoil(folder)
    (found,) = inspect(folder)["problems"]
    assert found.startswith(problem)


def swap(folder: Path) -> None:
    one, other = (folder / shard for shard in SHARDS)
    aside = one.rename(folder / "aside")
    other.rename(one)
    aside.rename(other)


def test_swapped_shards_are_found_by_their_tensors(folder: Path) -> None:
    swap(folder)
    assert inspect(folder)["problems"] == [
        f"shard {SHARDS[0]} lacks tensor a, which the index places there",
        f"shard {SHARDS[1]} lacks tensor b and 1 more, which the index places there",
    ]


def test_a_type_that_nobody_knows_yet_and_parts_of_bytes_pass(folder: Path) -> None:
    a = {"dtype": "F2_NEW", "shape": [5], "data_offsets": [0, 3]}
    four_bits = {"dtype": "F4", "shape": [4, 2], "data_offsets": [3, 7]}
    write(SHARDS[0], header(a=a, b=four_bits, size=7))(folder)
    assert inspect(folder)["problems"] == []


def test_a_download_that_waits_in_the_cache_folder_is_told(folder: Path) -> None:
    cache = folder / ".cache/huggingface/download"
    cache.mkdir(parents=True)
    (cache / "x.lock").write_text("")
    assert inspect(folder)["problems"] == []
    (cache / "abc.incomplete").write_text("")
    assert inspect(folder)["problems"] == [
        ".cache/huggingface/download/abc.incomplete is a download that has not ended"
    ]


def test_one_file_is_a_model_too(folder: Path) -> None:
    remove(*SHARDS, "model.safetensors.index.json")(folder)
    write("model.safetensors", safetensors("a"))(folder)
    assert inspect(folder)["problems"] == []


def test_an_index_of_a_format_that_was_not_copied_does_not_matter(folder: Path) -> None:
    write("pytorch_model.bin.index.json", json.dumps({"weight_map": {"a": "pytorch_model-1.bin"}}))(folder)
    assert inspect(folder)["problems"] == []


def test_mistrals_own_layout(tmp_path: Path) -> None:
    for name, content in (
        ("params.json", b"{}"),
        ("tekken.json", b"{}"),
        ("consolidated.safetensors", safetensors("a")),
    ):
        (tmp_path / name).write_bytes(content)
    assert inspect(tmp_path)["problems"] == []


def test_gguf(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"GGUF" + bytes(20))
    assert inspect(path)["problems"] == []
    path.write_bytes(b"nope" + bytes(20))
    assert inspect(path)["problems"] == ["m.gguf is no GGUF file"]
    path.write_text(POINTER)
    assert "git-lfs" in inspect(path)["problems"][0]


def test_a_models_own_code(folder: Path) -> None:
    config = {
        "architectures": ["XForCausalLM"],
        "auto_map": {
            "AutoConfig": "configuration_x.XConfig",
            "AutoModel": "org/repo--modeling_x.X",
            "T": [None, "tok_x.T"],
        },
    }
    write("config.json", json.dumps(config))(folder)
    write("configuration_x.py", "")(folder)
    found = inspect(folder)
    assert found["auto_map"] is True
    assert found["auto_map_missing"] == ["modeling_x.py", "tok_x.py"]
    assert found["problems"] == []


def test_vocabulary_files_are_found_one_level_below(folder: Path) -> None:
    (folder / "tiktoken").mkdir()
    write("tiktoken/o200k_base.tiktoken", "x")(folder)
    assert inspect(folder)["vocabulary_files"] == ["tiktoken/o200k_base.tiktoken"]


def test_a_long_list_of_problems_is_cut(folder: Path) -> None:
    index = {"weight_map": {str(number): f"s{number}.safetensors" for number in range(90)}}
    write("model.safetensors.index.json", json.dumps(index))(folder)
    problems = inspect(folder)["problems"]
    assert len(problems) == 21
    assert problems[-1] == "and 70 more"


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    name=st.sampled_from(
        ["config.json", "model.safetensors.index.json", "tokenizer.json", "tokenizer_config.json", SHARDS[0]]
    ),
    content=st.binary(max_size=200)
    | st.sampled_from(
        [
            b'{"auto_map": 1}',
            b'{"auto_map": {"a": {}}}',
            b'{"weight_map": {"a": 1}}',
            b'{"weight_map": 1}',
            b"null",
            b"[" * 5000,
        ]
    ),
)
def test_no_content_breaks_it(folder: Path, name: str, content: bytes) -> None:
    (folder / name).write_bytes(content)
    inspect(folder)
