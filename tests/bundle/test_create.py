"""What goes into a bundle, what stays in it, and what is refused before work begins. No registry is needed here."""

from __future__ import annotations

import io
import itertools
import json
import os
import shutil
import subprocess
from collections import namedtuple
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from rich.console import Console

from tests.unit import bundles, model_folders
from tests.unit.bundles import call, verify
from vllm_node.bundle import sbom
from vllm_node.bundle.create import Request, create
from vllm_node.bundle.hashing import FileHash
from vllm_node.bundle.layout import Folder, Manifest, Part
from vllm_node.bundle.reporter import Reporter
from vllm_node.bundle.verify import verify as verify_all
from vllm_node.models import manifest as manifests

DIGEST = "sha256:" + "a" * 64
QUIET = Console(file=io.StringIO())


class Maker:
    """`bundle create` of models and of a toolkit's wheel, in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.output = folder, folder / "bundle"
        self.model = model_folders.model(folder / "model")
        self.inventory = bundles.inventory(folder / "inventory")

    def __call__(self, *words: str | Path, code: int = 0) -> str:
        return call("create", "-i", self.inventory, "--output", self.output, *words, code=code).output

    def models(self, *more: str | Path, code: int = 0) -> str:
        return self("--only", "models", "--model", f"it={self.model}", *more, code=code)

    def toolkit(self, *more: str | Path, code: int = 0) -> str:
        return self("--only", "toolkit", "--toolkit", bundles.toolkit(self.folder / "index"), *more, code=code)


@pytest.fixture
def make(tmp_path: Path) -> Maker:
    return Maker(tmp_path)


def test_a_model_is_copied_with_its_manifest(make: Maker) -> None:
    blob = make.folder / "blob"
    (make.model / "tokenizer.json").rename(blob)
    (make.model / "tokenizer.json").symlink_to(blob)  # as the hub's cache has it
    (make.model / ".cache").mkdir()
    (make.model / ".cache/x").write_text("x")
    said = make.models()
    assert ".cache/ is left out" in said
    there = make.output / "models/it"
    assert not (there / "tokenizer.json").is_symlink()
    assert manifests.compare(manifests.read(make.output / "models/it.json"), there) == []
    assert manifests.read(make.output / "models/it.json").fingerprint == manifests.make(make.model).fingerprint


@pytest.mark.parametrize("name", ["../x", ".x", "a/b", "x.json", "a b"])
def test_a_models_name_becomes_a_folder(make: Maker, name: str) -> None:
    assert "the name becomes a folder" in make("--only", "models", "--model", f"{name}={make.model}", code=4)
    assert not make.output.exists()


def test_models_that_are_not_whole_are_refused_before_anything_is_copied(make: Maker) -> None:
    (make.model / model_folders.SHARDS[0]).unlink()
    gpt = model_folders.model(make.folder / "gpt", architectures=["GptOssForCausalLM"])
    said = make.models("--model", f"gpt={gpt}", "--model", f"no={make.folder / 'nothing'}", code=4)
    assert model_folders.SHARDS[0] in said
    assert "cl100k_base.tiktoken is missing: gpt-oss fetches it" in said
    assert "it is no folder" in said
    assert not make.output.exists()


def test_what_is_not_asked_for_stays_and_what_is_asked_for_is_renewed(make: Maker) -> None:
    make.toolkit()
    before = bundles.stamps(make.output / "toolkit")
    make.models()
    assert verify(make.output) == []
    assert bundles.stamps(make.output / "toolkit") == before
    model = bundles.stamps(make.output / "models/it")
    other = model_folders.model(make.folder / "other", fill="x")
    make.models("--model", f"other={other}")
    assert bundles.stamps(make.output / "models/it") == model, "what was there was copied again"
    make("--only", "models", "--model", f"other={other}")
    assert sorted(path.name for path in (make.output / "models").iterdir()) == ["other", "other.json"]
    assert verify(make.output) == []
    assert bundles.stamps(make.output / "toolkit") == before


def test_a_source_that_has_changed_is_copied_again(make: Maker) -> None:
    make.models()
    before = bundles.stamps(make.output / "models/it")
    (make.model / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"], "x": 1}))
    make.models()
    after = bundles.stamps(make.output / "models/it")
    assert {path for path in after if after[path] != before[path]} == {"config.json"}
    assert verify(make.output) == []


def test_a_file_of_the_bundle_that_was_spoilt_is_made_again(make: Maker) -> None:
    make.models()
    bundles.flip(make.output / "models/it/config.json")
    make.models()
    assert verify(make.output) == []


def test_what_was_spoilt_and_is_not_asked_for_is_told(make: Maker) -> None:
    make.toolkit()
    make.models()
    bundles.flip(make.output / "models/it/config.json")
    said = make.toolkit(code=4)
    assert "models/ is not whole (models/it/config.json)" in said
    assert verify(make.output, code=3) == [("unfinished", "SHA256SUMS")]
    make.models()
    assert verify(make.output) == []


def test_what_an_interrupted_run_left_is_not_taken_for_a_model(make: Maker) -> None:
    make.models()
    (make.output / "SHA256SUMS").unlink()
    (make.output / ".partial").mkdir()
    said = make.toolkit(code=4)
    assert "models/ is not whole" in said
    make.models()
    make.toolkit()
    assert verify(make.output) == []


def test_a_create_that_is_killed_anywhere_goes_on(make: Maker, tmp_path: Path) -> None:
    """Also one that renews a bundle that was finished, and one that signs. Images: tests/registry."""
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / "key")], check=True)
    allowed = tmp_path / "allowed"
    allowed.write_text(f"me {(tmp_path / 'key.pub').read_text()}")
    wheel = bundles.toolkit(tmp_path / "index")
    folders: frozenset[Folder] = frozenset({"models", "toolkit"})
    request = Request((str(make.inventory),), make.output, folders, {"it": make.model}, toolkit=wheel, sign_key=tmp_path / "key")
    for number in itertools.count(1, 7):  # every step was tried once; they are many
        output = tmp_path / f"new-{number}"
        if number % 2:
            create(replace(request, output=output, folders=frozenset({"models"})), Reporter(QUIET))
        if not bundles.killed_at(number, partial(create, replace(request, output=output), Reporter(QUIET))):
            break
        if output.exists() and verify_all(output, Reporter(QUIET)).ok:
            # Before the first change, or after the last.
            assert (output / "SHA256SUMS").exists()
        before = bundles.stamps(output) if output.exists() else {}
        create(replace(request, output=output), Reporter(QUIET))
        assert verify(output, "--allowed-signers", allowed) == []
        again = {path for path, stamp in before.items() if path in (after := bundles.stamps(output)) and after[path] != stamp}
        telling_time = {"bundle.json", "sbom.cdx.json", "models/it.json", "SHA256SUMS", "SHA256SUMS.sig"}
        # Each thread may have been killed before it noted what it had made.
        assert len(again - telling_time) <= len(os.sched_getaffinity(0)), "what was whole was made again"
    assert number > 60


def test_a_key_is_looked_at_first_and_the_signature_is_one(make: Maker) -> None:
    key = make.folder / "key"
    key.write_text("no key")
    assert "is no key" in make.models("--sign-key", key, code=4)
    assert not make.output.exists()
    key.unlink()
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    (make.folder / "allowed").write_text(f"me {(make.folder / 'key.pub').read_text()}")
    make.models("--sign-key", key)
    assert verify(make.output, "--allowed-signers", make.folder / "allowed") == []
    make.toolkit()
    assert not (make.output / "SHA256SUMS.sig").exists(), "a signature over other sums is worse than none"


def test_room_on_the_disk_is_looked_at_before_anything_is_copied(make: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: usage(2 << 30, 0, (1 << 30) + 100))
    assert "and its file system has 1.1 GB" in make.models(code=4)
    assert not (make.output / "models").exists()
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: usage(2 << 30, 0, (1 << 30) + (1 << 20)))
    make.models()


def test_a_full_disk_says_so_and_leaves_what_is_whole(make: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write

    def full(descriptor: int, content: Any) -> int:
        if Path(f"/proc/self/fd/{descriptor}").readlink().name.endswith("-copy") and content[:1] == b"{":
            raise OSError(28, "No space left on device")
        return real(descriptor, content)

    monkeypatch.setattr(os, "write", full)
    said = make.models(code=4)
    assert "No space left on device" in said
    monkeypatch.undo()
    whole = bundles.stamps(make.output / "models/it")
    make.models()
    assert verify(make.output) == []
    assert {path: bundles.stamps(make.output / "models/it")[path] for path in whole} == whole


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--only", "models"], "--only models needs --model"),
        (["--only", "rpms"], "--only rpms needs --rpms or --rpm"),
        (["--only", "images", "--model", "a=b"], "without effect"),
        (["--only", "images", "--no-images"], "not both"),
        (["--model", "a"], "give NAME=FOLDER"),
        (["--model", "a=b", "--model", "a=c"], "given twice"),
    ],
)
def test_calls_that_make_no_sense(make: Maker, words: list[str], said: str) -> None:
    assert said in make(*words, code=2)


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ({}, "it has no repository"),
        ({"repository": "r.example/x"}, "its digest is None"),
        ({"repository": "r.example/x", "digest": "sha256:" + "0" * 64}, "vllm-node images lock"),
        ({"repository": "docker://r.example/x", "digest": DIGEST}, "no plain HOST/PATH"),
        ({"repository": "{{ x }}/x", "digest": DIGEST}, "no plain HOST/PATH"),
        ({"repository": "r.example/x", "digest": DIGEST}, "it has no architecture"),
    ],
)
def test_a_lock_that_cannot_be_fetched_is_told_before_anybody_is_asked(make: Maker, entry: dict[str, str], said: str) -> None:
    bundles.inventory(make.folder / "inventory", {"one": entry, "two": entry})
    told = make("--only", "images", code=4)
    assert all(f"  {name}: " in told for name in ("one", "two"))
    assert said in told
    assert not make.output.exists()


def test_json_says_what_was_made(make: Maker) -> None:
    result = call("create", "-i", make.inventory, "--output", make.output, "--only", "models", "--model", f"it={make.model}", "--json")
    said = json.loads(result.stdout)
    assert (said["bundle"], said["signed"], [part["name"] for part in said["parts"]]) == (str(make.output), False, ["it"])
    assert said["files"] == len([path for path in make.output.rglob("*") if path.is_file()]) - 1


def test_the_list_of_contents_is_valid_and_says_what_is_known() -> None:
    image = {"digest": DIGEST, "platform_digest": DIGEST, "repository": "r.example:5000/x/vllm", "architecture": "amd64", "tag": "v1"}
    parts = (
        Part("image", "vllm", "images", 3, 100, "copied", {**image, "source": "up.example/x/vllm"}),
        Part("wheel", "click", "wheels/click-8.whl", 1, 5, "index of pip", {"version": "8", "licence": "BSD-3-Clause"}),
        Part("wheel", "click", "wheels/click-9.whl", 1, 5, "index of pip", {"version": "9", "licence": "some words"}),
        Part("collection", "a.b", "collections/a-b.tar.gz", 1, 5, "packed", {"version": "1"}),
        Part("rpm", "podman", "rpms/podman.rpm", 1, 5, "copied", {"version": "5-1", "architecture": "x86_64", "signed": True, "licence": "Apache-2.0 AND MIT"}),
        Part("model", "it", "models/it", 2, 5, "copied"),
        Part("toolkit", "vllm-node", "toolkit", 1, 5, "built", {"version": "0.1.0"}),
        Part("dashboards", "vllm-node", "dashboards/vllm-node", 1, 5, "ours"),
    )
    files = {(part.path, part.name): {part.path: FileHash("b" * 64, 5)} for part in parts}
    files["models/it", "it"] = {f"models/it/{name}": FileHash("c" * 64, 5) for name in ("x", "y")}
    manifest = Manifest("2026-11-30T00:00:00Z", "0.1.0", parts)
    text = sbom.text(manifest, files)
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    assert text == sbom.text(manifest, files)
    found = {one["bom-ref"]: one for one in json.loads(text)["components"]}
    assert len(found) == 7
    assert found["image/vllm"]["purl"].startswith(f"pkg:oci/vllm@{DIGEST}?")
    assert "up.example" in found["image/vllm"]["purl"]
    assert found["image/vllm"]["hashes"] == [{"alg": "SHA-256", "content": "a" * 64}]
    assert found["wheel/wheels/click-8.whl"]["licenses"] == [{"license": {"id": "BSD-3-Clause"}}]
    assert found["wheel/wheels/click-9.whl"]["licenses"] == [{"license": {"name": "some words"}}]
    assert found["rpm/podman"]["licenses"] == [{"expression": "Apache-2.0 AND MIT"}]
    assert found["collection/a.b"]["hashes"] == [{"alg": "SHA-256", "content": "b" * 64}]
    assert "licenses" not in found["collection/a.b"]
    assert [one["name"] for one in found["model/it"]["components"]] == ["x", "y"]


def test_dashboards_that_are_not_there_are_told(make: Maker) -> None:
    (make.inventory / "group_vars/all/main.yml").write_text('grafana_dashboards_import: ["{{ inventory_dir }}/none.json"]\n')
    assert f"names what is not there: {make.inventory}/none.json" in make("--only", "dashboards", code=4)
    (make.inventory / "group_vars/all/main.yml").write_text('grafana_dashboards_import: ["{{ lookup(\'x\') }}/none.json"]\n')
    assert "only Ansible can fill in" in make("--only", "dashboards", code=4)
