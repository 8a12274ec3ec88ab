"""`vllm-node images lock` as a person calls it, on a lock of real images in a real registry."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from tests.registry import tiny
from tests.registry.conftest import Registry, Silent
from tests.registry.tiny import Tiny
from vllm_node.images.cli import images_group
from vllm_node.images.lockfile import Entry
from vllm_node.images.resolve import Outcome, resolve_all
from vllm_node.images.skopeo import Access

ZEROS = "sha256:" + "0" * 64
ELSEWHERE = "sha256:" + "1" * 64


@dataclass
class Site:
    """An inventory with a lock of `images` ({name: (repository, tag, architecture)}), and how it is called."""

    registry: Registry
    inventory: Path

    @property
    def lock(self) -> Path:
        return self.inventory / "group_vars/all/images.lock.yml"

    def locks(self, **images: dict[str, Any]) -> None:
        self.lock.parent.mkdir(parents=True, exist_ok=True)
        lines = ["---", "# ours", "images_lock:"]
        for name, image in images.items():
            lines += [f"  {name}:", "    # where it was read"]
            lines += [f"    {key}: {value}" for key, value in image.items()]
        self.lock.write_text("\n".join(lines) + "\n")

    def image(self, path: str, tag: str = "1", **more: Any) -> dict[str, Any]:
        """An entry that comes from this registry, and goes to one that nobody can reach."""
        origin = {"repository": f"site.invalid/{path}", "source": f"{self.registry.address}/{path}"}
        return {**origin, "tag": tag, "digest": ZEROS, "architecture": "amd64", **more}

    def entry(self, name: str) -> dict[str, Any]:
        return dict(yaml.safe_load(self.lock.read_text())["images_lock"][name])

    def run(self, *words: str, code: int, access: bool = True) -> str:
        """What is said on stdout; the exit code has to be `code`."""
        given = ["--authfile", str(self.registry.access.authfile), "--ca", str(self.registry.ca_dir)] if access else []
        result = CliRunner().invoke(images_group, ["lock", "-i", str(self.inventory), *given, *words])
        assert result.exit_code == code, result.output
        return result.stdout

    def document(self, *words: str, code: int, access: bool = True) -> dict[str, Any]:
        found = json.loads(self.run("--json", *words, code=code, access=access))
        assert found["exit_code"] == code
        return dict(found)


@pytest.fixture
def inventory(site: Registry, tmp_path: Path) -> Site:
    return Site(site, tmp_path / "inventory")


@pytest.mark.parametrize("kinds", [tiny.OCI, tiny.DOCKER], ids=["OCI", "Docker"])
@pytest.mark.parametrize("architecture", ["amd64", "arm64"])
def test_an_index_is_locked_with_the_platform_and_what_a_node_fetches(
    inventory: Site, kinds: dict[str, str], architecture: str
) -> None:
    pushed = inventory.registry.push(tiny.two_platforms(kinds=kinds), "lock/index", "1")
    inventory.locks(it=inventory.image("lock/index", architecture=architecture))
    inventory.run(code=0)
    child = list(pushed.manifests)[("amd64", "arm64").index(architecture)]
    entry = inventory.entry("it")
    assert (entry["digest"], entry["platform_digest"], entry["size_bytes"]) == (pushed.digest, child, pushed.size(child))
    assert list(entry) == ["repository", "source", "tag", "digest", "platform_digest", "architecture", "size_bytes"]
    assert "# ours" in inventory.lock.read_text()
    assert "    # where it was read\n" in inventory.lock.read_text()


@pytest.mark.parametrize("kinds", [tiny.OCI, tiny.DOCKER], ids=["OCI", "Docker"])
def test_an_image_without_index_has_one_digest(inventory: Site, kinds: dict[str, str]) -> None:
    pushed = inventory.registry.push(tiny.one_platform(kinds=kinds), "lock/single", "1")
    inventory.locks(it=inventory.image("lock/single"))
    inventory.run(code=0)
    entry = inventory.entry("it")
    assert entry["digest"] == entry["platform_digest"] == pushed.digest
    assert entry["size_bytes"] == pushed.size(pushed.digest)


def test_a_second_run_changes_no_byte_and_check_is_content(inventory: Site) -> None:
    inventory.registry.push(tiny.two_platforms(), "lock/again", "1")
    inventory.locks(it=inventory.image("lock/again"))
    inventory.run(code=0)
    before = inventory.lock.read_bytes(), inventory.lock.stat().st_ino
    assert "Nothing to write." in inventory.run(code=0)
    assert "The lock is what the registries have." in inventory.run("--check", code=0)
    assert (inventory.lock.read_bytes(), inventory.lock.stat().st_ino) == before


def test_a_tag_that_has_moved_is_found_and_taken_when_asked(inventory: Site) -> None:
    old = inventory.registry.push(tiny.two_platforms("old"), "lock/moves", "1")
    inventory.registry.push(tiny.two_platforms("stays"), "lock/stays", "1")
    inventory.locks(moves=inventory.image("lock/moves"), stays=inventory.image("lock/stays"))
    inventory.run(code=0)
    before = inventory.lock.read_text()
    new = inventory.registry.push(tiny.two_platforms("new"), "lock/moves", "1")
    found = inventory.document("--check", code=4)
    assert {name: one["state"] for name, one in found["images"].items()} == {"moves": "moved", "stays": "locked"}
    moves = found["images"]["moves"]
    assert (moves["locked"]["digest"], moves["seen"]["digest"], moves["locked_gone"]) == (old.digest, new.digest, False)
    table = inventory.run("--check", code=4)
    assert f"{old.digest[:19]}  {new.digest[:19]}" in table
    inventory.run("--check", "--update", "stays", code=0)
    inventory.run("--update", "stays", code=0)
    assert inventory.lock.read_text() == before
    inventory.run("--update", "moves", code=0)
    assert inventory.lock.read_text() != before
    assert inventory.entry("moves")["digest"] == new.digest


def test_a_locked_digest_that_can_no_longer_be_had_is_told(inventory: Site) -> None:
    inventory.registry.push(tiny.one_platform(), "lock/left", "1")
    inventory.locks(it=inventory.image("lock/left", digest=ELSEWHERE))
    assert inventory.document("--check", code=4)["images"]["it"]["locked_gone"] is True
    assert f"the locked {ELSEWHERE} can no longer be had" in inventory.run("--check", code=4)


def test_fields_that_are_missing_or_wrong_are_drift(inventory: Site) -> None:
    pushed = inventory.registry.push(tiny.one_platform(), "lock/fields", "1")
    known = inventory.image("lock/fields", digest=pushed.digest)
    inventory.locks(less=known, wrong={**known, "platform_digest": ELSEWHERE, "size_bytes": 1})
    found = inventory.document("--check", code=4)["images"]
    assert (found["less"]["state"], found["wrong"]["state"]) == ("incomplete", "differs")
    inventory.run(code=0)
    inventory.run("--check", code=0)


def test_an_entry_with_a_digest_only_gets_the_rest(inventory: Site) -> None:
    pushed = inventory.registry.push(tiny.two_platforms("digest only"), "lock/digest", "1")
    image = inventory.image("lock/digest", digest=pushed.digest)
    del image["tag"]
    inventory.locks(it=image)
    inventory.run(code=0)
    assert inventory.entry("it")["digest"] == pushed.digest
    assert inventory.entry("it")["platform_digest"] in pushed.manifests
    inventory.locks(it={**image, "digest": ELSEWHERE})
    assert inventory.document("--check", code=4)["images"]["it"]["state"] == "gone"


def test_all_problems_are_told_at_once_and_nothing_is_written(inventory: Site) -> None:
    inventory.registry.push(tiny.two_platforms(), "lock/fine", "1")
    inventory.registry.push(Tiny().index([]), "lock/empty", "1")
    inventory.locks(
        fine=inventory.image("lock/fine"),
        absent=inventory.image("lock/fine", tag="2"),
        lacks=inventory.image("lock/fine", architecture="s390x"),
        empty=inventory.image("lock/empty"),
        unreachable={**inventory.image("x"), "source": "127.0.0.1:1/x"},
        template={**inventory.image("x"), "source": "'{{ site }}/x'"},
        nameless=inventory.image("x", architecture="''"),
    )
    before = inventory.lock.read_bytes()
    found = inventory.document(code=4)
    assert (found["written"], inventory.lock.read_bytes()) == (False, before)
    problems = {name: one["problem"] for name, one in found["images"].items()}
    assert problems.pop("fine") is None
    assert {name: one["kind"] for name, one in problems.items()} == {
        "absent": "absent",
        "lacks": "manifest",
        "empty": "manifest",
        "unreachable": "unreachable",
        "template": "entry",
        "nameless": "entry",
    }
    assert "it has no linux/s390x; it has linux/amd64, linux/arm64/v8" in problems["lacks"]["text"]
    assert all(name in inventory.run(code=4) for name in problems)


@pytest.mark.parametrize(
    ("spoil", "kind", "step"),
    [
        (lambda own: replace(own, access=replace(own.access, authfile=own.authfile("wrong"))), "refused", "--authfile"),
        (lambda own: replace(own, access=replace(own.access, authfile=own.authfile("wrong")), ca_dir=own.folder / "none"), "tls", "--ca"),
    ],
    ids=["wrong password", "unknown authority"],
)
def test_a_registry_that_lets_nobody_in(
    inventory: Site, spoil: Callable[[Registry], Registry], kind: str, step: str
) -> None:
    inventory.registry.push(tiny.one_platform(), "lock/closed", "1")
    inventory.locks(it=inventory.image("lock/closed"))
    other = inventory.registry.folder / "none/other.crt"
    other.parent.mkdir(exist_ok=True)
    other.write_text("")
    there = Site(spoil(inventory.registry), inventory.inventory)
    problem = there.document("--check", code=5)["images"]["it"]["problem"]
    assert (problem["kind"], step in problem["next"]) == (kind, True)
    assert f"{inventory.registry.address}/lock/closed:1" in problem["text"]


def test_one_platform_of_another_architecture_is_refused(inventory: Site) -> None:
    inventory.registry.push(tiny.one_platform("arm64"), "lock/other", "1")
    inventory.locks(it=inventory.image("lock/other"))
    problem = inventory.document(code=4)["images"]["it"]["problem"]
    assert "it has no index and is for linux/arm64, not for linux/amd64" in problem["text"]


def test_an_interruption_does_not_wait_for_registries(inventory: Site, silent: Silent) -> None:
    hanging = [Entry(f"hangs{number}", repository=f"{silent.address}/x", tag="1", architecture="amd64") for number in range(12)]

    def told(_outcome: Outcome) -> None:
        raise KeyboardInterrupt

    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        resolve_all([Entry("wrong"), *hanging], Access(), told)
    assert time.monotonic() - began < 15
    assert subprocess.run(["pgrep", "-f", f"skopeo inspect .*{silent.address}"], check=False, capture_output=True).returncode == 1


def test_without_skopeo_the_next_step_is_told(inventory: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    inventory.locks(it=inventory.image("x"))
    monkeypatch.setenv("PATH", str(inventory.inventory))
    result = CliRunner().invoke(images_group, ["lock", "-i", str(inventory.inventory)])
    assert result.exit_code == 1
    assert "dnf install skopeo" in result.stderr


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--update", "none"], "has no image none; it has it"),
        (["--ca", "group_vars"], "no *.crt in it"),
        (["--lock", "group_vars/all/empty.yml"], "holds no image"),
    ],
)
def test_a_call_that_cannot_be_meant(
    inventory: Site, monkeypatch: pytest.MonkeyPatch, words: list[str], told: str
) -> None:
    inventory.locks(it=inventory.image("x"))
    (inventory.lock.parent / "empty.yml").write_text("images_lock: {}\n")
    monkeypatch.chdir(inventory.inventory)
    result = CliRunner().invoke(images_group, ["lock", "-i", ".", *words])
    assert (result.exit_code, told in result.stderr) == (2, True)


def test_progress_is_a_line_an_image_on_stderr(inventory: Site) -> None:
    inventory.registry.push(tiny.one_platform(), "lock/progress", "1")
    inventory.locks(it=inventory.image("lock/progress"), broken=inventory.image("lock/progress", tag="2"))
    given = ["--authfile", str(inventory.registry.access.authfile), "--ca", str(inventory.registry.ca_dir)]
    result = CliRunner().invoke(images_group, ["lock", "-i", str(inventory.inventory), *given])
    lines = sorted(line.partition(" ")[2] for line in result.stderr.splitlines())
    assert lines[0] == "broken: gone"
    assert lines[1].startswith("it: new, ")
