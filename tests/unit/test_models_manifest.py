"""Manifests of models: what they say, what they refuse, and that no difference of a folder goes untold."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.model_folders import POINTER, SHARDS, SPOILT, Spoil, model
from vllm_node.byte_progress import Lines
from vllm_node.cli import cli
from vllm_node.models import manifest as manifests
from vllm_node.models.shared import shared


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return model(tmp_path / "chat")


def command(*words: str | Path) -> Result:
    return CliRunner().invoke(cli, ["models", "manifest", *map(str, words)])


def test_it_names_every_file_in_order_with_its_size_and_hash(folder: Path) -> None:
    document = json.loads(command(folder).stdout)
    assert document["schema"] == 1
    assert document["name"] == "chat"
    assert document["architectures"] == ["LlamaForCausalLM"]
    assert (document["problems"], document["own_code"], document["left_out"]) == ([], [], [])
    assert document["vocabulary_files"] == ["vocabulary/o200k_base.tiktoken"]
    assert document["tool"].startswith("vllm-node ")
    assert document["made_at"].endswith("+00:00")
    paths = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    assert [entry["path"] for entry in document["files"]] == paths
    for entry in document["files"]:
        data = (folder / entry["path"]).read_bytes()
        assert (entry["size"], entry["sha256"]) == (len(data), hashlib.sha256(data).hexdigest())
    assert document["total_bytes"] == sum(entry["size"] for entry in document["files"])


def test_links_of_a_download_cache_count_as_the_files_behind_them(folder: Path, tmp_path: Path) -> None:
    plain = manifests.make(folder)
    (folder / SHARDS[0]).rename(tmp_path / "blob")
    (folder / SHARDS[0]).symlink_to("../blob")
    assert manifests.make(folder).files == plain.files


def test_a_manifest_is_the_same_model_whenever_it_was_made(folder: Path) -> None:
    one, other = manifests.make(folder), manifests.make(folder)
    assert one.fingerprint == other.fingerprint
    (folder / "config.json").write_text("{}")
    assert manifests.make(folder).fingerprint != one.fingerprint


def write(name: str, text: str) -> Spoil:
    def spoil(folder: Path) -> None:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)

    return spoil


def config(**values: Any) -> Spoil:
    return write("config.json", json.dumps({"architectures": ["LlamaForCausalLM"], **values}))


PROBLEMS: list[tuple[Spoil, str]] = [
    (lambda folder: (folder / SHARDS[0]).unlink(), f"shard {SHARDS[0]} is missing"),
    (write(SHARDS[1], POINTER), f"shard {SHARDS[1]} is a git-lfs pointer, not the file itself"),
    (lambda folder: (folder / "tokenizer.json").unlink(), "the tokenizer is missing"),
    (write("m.safetensors.incomplete", ""), "m.safetensors.incomplete is a download that has not ended"),
    (write(".cache/huggingface/download/x.incomplete", ""), ".cache/huggingface/download/x.incomplete is a download"),
    (config(auto_map={"AutoModel": "modeling_x.X"}), "modeling_x.py is named by auto_map and missing"),
    (config(architectures=["GptOssForCausalLM"]), "cl100k_base.tiktoken is missing: gpt-oss fetches it"),
    (lambda folder: (folder / "gone.json").symlink_to("nowhere"), "gone.json is a link that leads nowhere"),
]


@pytest.mark.parametrize(("spoil", "problem"), PROBLEMS, ids=[text[:40] for _, text in PROBLEMS])
def test_what_is_not_whole_is_told_and_gives_exit_code_3(folder: Path, tmp_path: Path, spoil: Spoil, problem: str) -> None:
    spoil(folder)
    done = command(folder, "--output", tmp_path / "m.json")
    assert done.exit_code == 3
    (told,) = manifests.read(tmp_path / "m.json").problems
    assert told.startswith(problem)
    assert f"problem: {problem}" in done.stderr


def test_gpt_oss_with_its_vocabularies_and_own_code_that_is_there_are_no_problems(folder: Path) -> None:
    config(architectures=["GptOssForCausalLM"], auto_map={"AutoModel": "modeling_x.X"})(folder)
    write("vocabulary/cl100k_base.tiktoken", "x")(folder)
    write("modeling_x.py", "")(folder)
    made = manifests.make(folder)
    assert made.problems == ()
    assert made.own_code == ("modeling_x.py",)


@pytest.mark.parametrize(
    ("path", "why"),
    [
        (".cache/huggingface/x.metadata", "notes of a download"),
        (".git/HEAD", "history of a clone"),
        ("model.lock", "a lock of a download"),
        ("m.incomplete", "a download that has not ended"),
    ],
)
def test_what_a_download_leaves_is_no_part_of_the_model(folder: Path, path: str, why: str) -> None:
    before = manifests.make(folder)
    write(path, "x")(folder)
    done = command(folder)
    assert json.loads(done.stdout)["files"] == before.document()["files"]
    assert f"left out: {path.split('/')[0]}" in done.stderr
    assert why in done.stderr


def test_a_link_to_a_folder_is_not_followed(folder: Path) -> None:
    (folder / "loop").symlink_to(folder)
    made = manifests.make(folder)
    assert made.left_out == {"loop/": "a link to a folder"}


@pytest.mark.parametrize("kind", SPOILT)
def test_every_difference_is_found_and_nothing_else(folder: Path, tmp_path: Path, kind: str) -> None:
    spoil, expected = SPOILT[kind]
    known = tmp_path / "m.json"
    assert command(folder, "--output", known).exit_code == 0
    assert command(folder, "--check", known).exit_code == 0
    spoil(folder)
    done = command(folder, "--check", known, "--json")
    assert done.exit_code == 3
    found = {one["path"]: one["seen"] for one in json.loads(done.stdout)["differences"]}
    assert set(found) == set(expected)
    assert all(words in found[path] for path, words in expected.items())


def test_all_differences_are_told_at_once(folder: Path, tmp_path: Path) -> None:
    known = tmp_path / "m.json"
    command(folder, "--output", known)
    (folder / SHARDS[0]).unlink()
    write("tokenizer.json", "[]")(folder)
    write("more.json", "{}")(folder)
    done = command(folder, "--check", known)
    assert f"{SHARDS[0]} is missing\nmore.json is not in the manifest\ntokenizer.json has other content" in done.stdout
    assert "3 differences from" in done.stdout


def test_a_manifest_is_not_written_into_the_folder_that_it_describes(folder: Path) -> None:
    done = command(folder, "--output", folder / "manifest.json")
    assert done.exit_code == 2
    assert "one of the files that it describes" in done.stderr
    assert not (folder / "manifest.json").exists()


def test_an_interrupted_run_leaves_no_half_manifest(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    done = command(folder, "--output", tmp_path / "m.json")
    assert done.exit_code == 2
    assert "No space left" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["chat"]


ENTRY = {"path": "a", "size": 1, "sha256": "0" * 64}
BROKEN: list[tuple[Any, str]] = [
    ([], "it holds no object"),
    ({"schema": 2, "files": [ENTRY]}, "it has schema 2, this toolkit knows 1"),
    ({"schema": 1, "files": []}, "it lists no files"),
    ({"schema": 1, "files": [{**ENTRY, "path": "../a"}]}, "'../a' is no path below the model's folder"),
    ({"schema": 1, "files": [{**ENTRY, "path": "/etc/passwd"}]}, "'/etc/passwd' is no path"),
    ({"schema": 1, "files": [{**ENTRY, "path": "a//b"}]}, "'a//b' is no path"),
    ({"schema": 1, "files": [{**ENTRY, "path": "a\nb"}]}, "is no path"),
    ({"schema": 1, "files": [ENTRY, ENTRY]}, "it lists a twice"),
    ({"schema": 1, "files": [ENTRY, {**ENTRY, "path": "a/b"}]}, "a/b lies below a file that it lists too"),
    ({"schema": 1, "files": [{**ENTRY, "size": -1}]}, "it gives a no size"),
    ({"schema": 1, "files": [{**ENTRY, "sha256": "0" * 63}]}, "it gives a no size or no SHA-256"),
]


@pytest.mark.parametrize(("data", "why"), BROKEN, ids=[why[:30] for _, why in BROKEN])
def test_a_manifest_that_cannot_be_right_is_refused(folder: Path, tmp_path: Path, data: Any, why: str) -> None:
    (tmp_path / "m.json").write_text(json.dumps(data))
    done = command(folder, "--check", tmp_path / "m.json")
    assert done.exit_code == 2
    assert why in done.stderr


ANYTHING = st.none() | st.integers() | st.text()
ENTRIES = st.dictionaries(st.sampled_from(["path", "size", "sha256"]), ANYTHING | st.just("0" * 64) | st.just("a/b"))


@settings(deadline=None)
@given(ANYTHING | st.lists(ANYTHING | ENTRIES))
def test_no_manifest_breaks_the_reader(files: Any) -> None:
    with contextlib.suppress(ValueError):
        shared("model_manifest").read(json.dumps({"schema": 1, "files": files}))


def test_progress_says_how_far_it_is_every_ten_seconds() -> None:
    now, lines = [0.0], list[str]()
    shown = Lines("hashing x", 100 << 20, lines.append, lambda: now[0])
    for second in range(1, 31):
        now[0] = second
        shown.add(2 << 20)
    assert lines == [
        "hashing x: 20.0 MiB of 100.0 MiB, 2.0 MiB/s, 40.0 s left",
        "hashing x: 40.0 MiB of 100.0 MiB, 2.0 MiB/s, 30.0 s left",
        "hashing x: 60.0 MiB of 100.0 MiB, 2.0 MiB/s, 20.0 s left",
    ]
