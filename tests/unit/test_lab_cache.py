"""The lab's cache: a build that was cut short is never taken for a whole one, and a key changes with its recipe."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from vllm_node.lab.cache import entry, lock, recipe_hash, remove_tree


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("vllm_node.lab.cache.os.sync", lambda: None)  # the machine may be busy with other things
    return tmp_path / "vllm-node"


def fill(folder: Path) -> None:
    (folder / "whole").write_text("yes")


def test_an_entry_is_built_once_and_found_afterwards(cache: Path) -> None:
    built: list[Path] = []

    def build(folder: Path) -> None:
        built.append(folder)
        fill(folder)

    first, second = entry("root", "k1", build), entry("root", "k1", build)
    assert first == second == cache / "root-k1"
    assert (first / "whole").read_text() == "yes"
    assert len(built) == 1


def test_a_build_that_fails_leaves_no_entry_and_the_next_one_starts_from_nothing(cache: Path) -> None:
    def broken(folder: Path) -> None:
        (folder / "half").write_text("")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        entry("root", "k1", broken)
    assert not (cache / "root-k1").exists()
    made = entry("root", "k1", fill)
    assert [path.name for path in made.iterdir()] == ["whole"]


def test_a_build_that_was_killed_is_never_taken_for_a_whole_one(cache: Path) -> None:
    script = (
        "import os, signal\nfrom vllm_node.lab.cache import entry\n"
        "def build(folder):\n    (folder / 'half').write_text('')\n    os.kill(os.getpid(), signal.SIGKILL)\n"
        "entry('root', 'k1', build)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], check=False, timeout=30)
    assert done.returncode < 0
    made = entry("root", "k1", fill)  # and its lock went with it
    assert [path.name for path in made.iterdir()] == ["whole"]


def test_entries_of_another_key_stay(cache: Path) -> None:
    old = entry("root", "k1", fill)
    entry("root", "k2", fill)
    assert (old / "whole").exists()


def test_two_runs_share_one_build(cache: Path) -> None:
    built: list[int] = []
    begun, go_on = threading.Event(), threading.Event()

    def slow(folder: Path) -> None:
        built.append(1)
        begun.set()
        go_on.wait(10)
        fill(folder)

    threads = [threading.Thread(target=entry, args=("root", "k1", slow)) for _ in range(2)]
    threads[0].start()
    assert begun.wait(10)
    threads[1].start()
    go_on.set()
    for thread in threads:
        thread.join(10)
    assert built == [1]


def test_locks_of_different_names_do_not_wait_for_each_other() -> None:
    with lock("a"), lock("b"):
        pass


def test_a_hash_is_short_and_the_same_for_the_same_parts(tmp_path: Path) -> None:
    file = tmp_path / "f"
    file.write_text("x")
    assert recipe_hash("a", 1, file) == recipe_hash("a", 1, file)
    assert len(recipe_hash("a")) == 12


def test_a_hash_changes_with_each_part_with_their_order_and_with_a_files_content(tmp_path: Path) -> None:
    file = tmp_path / "f"
    file.write_text("x")
    hashes = [
        recipe_hash("a", "b"),
        recipe_hash("b", "a"),
        recipe_hash("ab"),
        recipe_hash(["a", "b"]),
        recipe_hash(file),
    ]
    file.write_text("y")
    hashes.append(recipe_hash(file))
    assert len(set(hashes)) == len(hashes)


def test_the_order_of_a_dictionary_does_not_count() -> None:
    assert recipe_hash({"a": 1, "b": 2}) == recipe_hash({"b": 2, "a": 1})


def test_removing_what_is_not_there_is_no_error_but_a_file_in_the_way_is(tmp_path: Path) -> None:
    remove_tree(tmp_path / "nothing")
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError):
        remove_tree(tmp_path / "file")
