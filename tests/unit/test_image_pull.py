"""Pulling images: progress out of what podman draws, and steps that start, wait, and tell a failure from a success."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.unit.role_code import calls, load, manifest_code, on_path, program, run_module

DIGEST = "sha256:" + "0a" * 32
A, B = "3f4d1e2a5b6c", "aabbccddeeff"
# What a terminal of podman holds: each redraw moves up, clears the line, and writes it again.
TERMINAL = (
    "Trying to pull registry:5000/vllm@sha256:00...\r\nGetting image source signatures\r\n"
    f"Copying blob {A} [--------------------------------------] 0.0b / 1.0GiB | 0.0 b/s\r\n"
    f"Copying blob {B} [=>------------------------------------] 512.0KiB / 10.0MiB | 9.1 MiB/s\r\n"
    f"\x1b[2A\x1b[JCopying blob {A} [==========>-------] 512.0MiB / 1.0GiB | 210.4 MiB/s\r\n"
    f"Copying blob {B} done   | \r\n"
)


@pytest.fixture(scope="module")
def pull() -> Any:
    return load("roles/images/library/image_pull.py")


def drawn(pull: Any, text: str) -> Any:
    return pull.progress(pull.ESCAPES.sub("", text))


def test_progress_is_the_newest_line_of_each_blob_added_up(pull: Any) -> None:
    assert drawn(pull, TERMINAL) == "0.5 of 1.0 GiB"


def test_a_blob_that_has_not_begun_counts_in_the_total(pull: Any) -> None:
    assert drawn(pull, f"Copying blob {A} [----] 0.0b / 2.0GiB | 0.0 b/s\n") == "0.0 of 2.0 GiB"


def test_blobs_are_added_up(pull: Any) -> None:
    text = f"Copying blob {A} [=>] 1.0GiB / 2.0GiB\nCopying blob {B} [=>] 1.5 GiB / 3.0 GiB\n"
    assert drawn(pull, text) == "2.5 of 5.0 GiB"


@pytest.mark.parametrize("text", ["", "Trying to pull x...\n", f"Copying blob {A} skipped: already exists\n"])
def test_no_progress_is_none_and_not_zero(pull: Any, text: str) -> None:
    assert drawn(pull, text) is None


@pytest.mark.parametrize(("text", "size"), [("3.0KiB", 3072), ("1.5 MiB", 1.5 * 2**20), ("0.0b", 0), ("2.0TiB", 2**41)])
def test_sizes_are_bytes(pull: Any, text: str, size: float) -> None:
    assert pull.size(text) == size


def test_last_words_are_the_errors_where_there_are_any(pull: Any) -> None:
    text = TERMINAL + "Error: copying layer\r\nError: unexpected EOF\r\n"
    assert pull.last_words(text) == "Error: copying layer\nError: unexpected EOF"
    assert pull.last_words("a\nb\r\nc\n\n d \n") == "b\nc\nd"
    assert pull.last_words("") == ""


def test_a_name_becomes_a_unit_that_systemd_takes(pull: Any) -> None:
    assert pull.unit_of("dcgm exporter/1") == "vllm-node-pull-dcgm-exporter-1.service"


def test_what_runs_in_the_terminal_sees_a_wide_one_and_its_exit_code_comes_out(pull: Any) -> None:
    script = "import os, sys; print(os.get_terminal_size().columns, os.isatty(2)); sys.exit(7)"
    words = [sys.executable, "-c", pull.IN_TERMINAL, sys.executable, "-c", script]
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=20)
    assert (done.stdout.strip(), done.returncode) == ("200 True", 7)


class Node:
    """A node whose podman has the images in `stored`, and whose systemd runs the units in `running`."""

    def __init__(self, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.root, self.capsys, self.programs = root, capsys, root / "bin"
        self.stored, self.running, self.log = root / "stored", root / "running", root / "log"
        self.module = load("roles/images/library/image_pull.py")
        self.module.LOGS, self.module.IMAGE_STORE = str(self.log), str(root)
        self.log.mkdir()
        self.has()
        self.runs()
        program(self.programs, "podman", f"/bin/cat {self.stored}")
        program(self.programs, "systemctl", f"[ $1 != is-active ] || /bin/grep -q -F -- $3 {self.running}")
        program(self.programs, "systemd-run", f"echo $3 >> {self.running}")

    def has(self, *names: str) -> None:
        self.stored.write_text(json.dumps([{"RepoDigests": [image(name)["reference"]]} for name in names] + [{}]))

    def runs(self, *names: str) -> None:
        self.running.write_text(" ".join(self.module.unit_of(name) for name in names))

    def said(self, name: str, text: str) -> None:
        Path(self.module.log_of(name)).write_text(text)

    def step(self, *names: str, check: bool = False, **more: Any) -> dict[str, Any]:
        arguments = {"images": [image(name) for name in names], "state_dir": str(self.root / "state"), "wait_s": 0}
        return run_module(self.module, self.capsys, **(arguments | more | {"_ansible_check_mode": check}))

    @property
    def manifest(self) -> dict[str, Any]:
        found: dict[str, Any] = manifest_code().Manifest.load(str(self.root / "state")).data
        return found


def image(name: str) -> dict[str, str]:
    return {"name": name, "reference": f"registry:5000/{name}@{DIGEST}"}


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Node:
    on_path(monkeypatch, tmp_path / "bin")
    monkeypatch.setattr("time.sleep", lambda _: None)
    monkeypatch.setattr("os.fsync", lambda _: None)
    return Node(tmp_path, capsys)


def test_images_that_are_there_are_left_alone(node: Node) -> None:
    node.has("a", "b")
    told = node.step("a", "b", begin=True)
    assert (told["changed"], told["present"], told["pulling"], told["started"]) == (False, ["a", "b"], {}, [])
    assert not (node.root / "state").exists()


def test_a_pull_is_recorded_and_started_by_digest_with_the_account(node: Node) -> None:
    told = node.step("a", begin=True, authfile="/etc/auth.json")
    assert (told["changed"], told["started"], told["pulling"]) == (True, ["a"], {"a": "started"})
    (words,) = calls(node.programs, "systemd-run")
    assert words[-5:] == ["podman", "pull", "--authfile", "/etc/auth.json", image("a")["reference"]]
    assert node.manifest["images"] == {image("a")["reference"]: "a"}


def test_no_more_pulls_run_at_once_than_allowed(node: Node) -> None:
    node.runs("a")
    told = node.step("a", "b", "c", begin=True, parallel=2)
    assert told["started"] == ["b"]
    assert set(told["pulling"]) == {"a", "b", "c"}


def test_a_running_pull_of_an_earlier_run_is_joined(node: Node) -> None:
    node.runs("a")
    node.said("a", TERMINAL)
    told = node.step("a", begin=True)
    assert (told["changed"], told["started"]) == (False, [])
    assert told["pulling"] == {"a": "0.5 of 1.0 GiB"}


def test_a_pull_that_ended_without_its_image_has_failed_and_is_told_once(node: Node) -> None:
    node.step("a", begin=True)
    node.runs()
    node.said("a", TERMINAL + "Error: reading blob: 401 Unauthorized\r\n")
    told = node.step("a")
    assert told["failed_images"] == {"a": "Error: reading blob: 401 Unauthorized"}
    assert told["pulling"] == {}
    again = node.step("a", begin=True)
    assert (again["failed_images"], again["started"]) == ({}, ["a"])


def test_the_words_of_an_earlier_run_are_forgotten_at_the_beginning(node: Node) -> None:
    node.step("a", begin=True)
    node.runs()
    node.said("a", "Error: of yesterday")
    assert node.step("a", begin=True)["failed_images"] == {}


def test_nothing_new_is_started_once_one_has_failed(node: Node) -> None:
    node.step("a", begin=True)
    node.runs()
    node.said("a", "Error: x")
    told = node.step("a", "b")
    assert told["started"] == []
    assert set(told["failed_images"]) == {"a"}


def test_a_pull_that_ends_well_between_two_questions_has_not_failed(node: Node) -> None:
    node.step("a", begin=True)
    node.said("a", TERMINAL)
    # It ends while systemd is asked: the images are asked for afterwards, and have it.
    done = json.dumps([{"RepoDigests": [image("a")["reference"]]}])
    program(node.programs, "systemctl", f"echo '{done}' > {node.stored}; exit 3")
    told = node.step("a")
    assert told["failed_images"] == {}
    assert told["present"] == ["a"]


@pytest.mark.parametrize(("words", "said"), [("no bus", "no bus"), ("", "systemd-run ended with 4")])
def test_a_pull_that_cannot_be_started_has_failed(node: Node, words: str, said: str) -> None:
    program(node.programs, "systemd-run", f"echo {words} >&2; exit 4")
    assert node.step("a", begin=True)["failed_images"] == {"a": said}


def test_check_mode_pulls_nothing_and_says_what_it_would(node: Node) -> None:
    told = node.step("a", begin=True, check=True)
    assert (told["changed"], told["started"], list(told["pulling"])) == (True, [], ["a"])
    assert calls(node.programs, "systemd-run") == []
    assert not (node.root / "state").exists()


def test_a_step_ends_early_when_a_pull_ends(node: Node) -> None:
    program(node.programs, "systemctl", "exit 3")
    before = len(calls(node.programs, "systemctl"))
    assert node.step("a", begin=True, wait_s=600)["started"] == ["a"]
    assert len(calls(node.programs, "systemctl")) - before < 5


def test_a_podman_that_fails_is_not_taken_for_an_empty_one(node: Node) -> None:
    program(node.programs, "podman", "echo 'Error: database is locked' >&2; exit 125")
    told = node.step("a", begin=True)
    assert (told["failed"], told["msg"]) == (True, "podman images: Error: database is locked")
    assert calls(node.programs, "systemd-run") == []


def test_a_podman_that_fails_without_a_word_is_told_by_its_exit_code(node: Node) -> None:
    program(node.programs, "podman", "exit 125")
    assert node.step("a")["msg"] == "podman images: exit code 125"


def test_a_damaged_manifest_is_an_error_in_words(node: Node) -> None:
    (node.root / "state").mkdir()
    (node.root / "state/manifest.json").write_text("{")
    assert "manifest.json is damaged" in node.step("a", begin=True)["msg"]


def test_a_node_that_never_ran_podman_is_not_made_to(node: Node) -> None:
    node.module.IMAGE_STORE = str(node.root / "nothing")
    node.step("a", check=True)
    assert calls(node.programs, "podman") == []
    assert os.environ["PATH"] == str(node.programs)
