"""Models on their way to a node: real rsync and the node's module in folders of this machine, nothing but ssh is missing."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.unit.model_folders import SHARDS, SPOILT, flip, model
from tests.unit.role_code import calls, load, manifest_code, program, run_module, shared_code
from vllm_node import transfer
from vllm_node.models import manifest as manifests
from vllm_node.models.delivery import Delivery, DeliveryError, Outcome, Settings
from vllm_node.models.store import wanted
from vllm_node.transfer import Reach

needs_rsync = pytest.mark.skipif(shutil.which("rsync") is None, reason="rsync is not installed on this machine")


class Site:
    """A control host and a node, both of them folders."""

    def __init__(self, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.root, self.capsys = root, capsys
        self.store, self.state, self.source = root / "srv/models", root / "state", root / "control/chat"
        self.tree, self.known = self.store / "chat", root / "chat.json"
        self.module = load("roles/model_store/library/model_tree.py")
        self.entries: list[dict[str, Any]] = [
            {"name": "chat", "source": "control", "path": str(self.source), "manifest": str(self.known)}
        ]
        self.more: dict[str, Any] = {}
        self.lines: list[str] = []
        self.asked: list[str] = []

    def describe(self) -> None:
        manifests.write(manifests.make(self.source), self.known)

    def step(self, arguments: dict[str, Any]) -> dict[str, Any]:
        self.asked.append(arguments["state"])
        assert arguments["state"] != "wait" or arguments["models"][0]["files"] == {}
        more = {"_ansible_check_mode": self.more.get("dry", False), "wait_s": self.more.get("wait_s", 10)}
        return run_module(self.module, self.capsys, **arguments, **more)

    def up(self) -> Outcome:
        values = {
            "model_store_models": self.entries,
            "model_store_dir": str(self.store),
            "model_store_copy": self.more.get("copy", False),
        }
        settings = Settings(str(self.store), str(self.state), dry=self.more.get("dry", False))
        self.asked, self.lines = [], []
        return Delivery(wanted(values), settings, Reach, self.step, self.lines.append).run()

    def held(self) -> dict[str, bytes]:
        """Everything in the store, but for marks."""
        paths = (path for path in self.store.rglob("*") if path.is_file() and not path.name.startswith("."))
        return {str(path.relative_to(self.store)): path.read_bytes() for path in paths}

    def sent(self) -> dict[str, bytes]:
        paths = (path for path in self.source.rglob("*") if path.is_file())
        return {f"chat/{path.relative_to(self.source)}": path.read_bytes() for path in paths}

    @property
    def record(self) -> dict[str, Any]:
        data: dict[str, Any] = manifest_code().Manifest.load(str(self.state)).data
        return data


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Site:
    found = Site(tmp_path, capsys)
    monkeypatch.setattr(shared_code("model_reading"), "RUNTIME", str(tmp_path / "run"))
    monkeypatch.setattr(found.module, "SPARE_BYTES", 0)
    monkeypatch.setattr(os, "fsync", lambda _: None)
    model(found.source)
    found.describe()
    return found


pytestmark = needs_rsync


def states(folder: Path) -> dict[Path, tuple[int, ...]]:
    """What is written of each file of a folder; reading one moves its access time only."""
    found = {path: path.stat() for path in folder.rglob("*")}
    return {path: (one.st_mode, one.st_ino, one.st_nlink, one.st_size, one.st_mtime_ns) for path, one in found.items()}


def test_a_model_is_brought_and_a_second_run_asks_once_and_changes_nothing(site: Site) -> None:
    (site.source / "model.lock").write_text("")
    first, expected = site.up(), site.sent()
    del expected["chat/model.lock"]
    assert first.changed
    assert first.delivered["chat"] == sum(map(len, expected.values()))
    assert site.held() == expected
    assert sorted(path.name for path in site.store.iterdir()) == [".chat.json", "chat"]
    second = site.up()
    assert (second.changed, second.delivered, second.read, second.verified) == (False, {}, [], ["chat"])
    assert site.asked == ["look"]


def test_what_is_made_is_on_record_before(site: Site) -> None:
    site.up()
    parts = [f"{site.tree}.incoming", f"{site.tree}.replaced", f"{site.store}/.chat.json.incoming"]
    assert site.record["models"] == {str(site.tree): {"mark": f"{site.store}/.chat.json", "parts": parts}}
    assert site.record["directories"][-2:] == [str(site.store.parent), str(site.store)]


def test_files_that_are_served_can_be_read_by_any_user_and_written_by_none(site: Site) -> None:
    for path in (site.source / SHARDS[0], site.source / "config.json"):
        path.chmod(0o660)
    site.up()
    assert {path.stat().st_mode & 0o777 for path in site.tree.rglob("*") if path.is_file()} == {0o644}
    assert {path.stat().st_mode & 0o777 for path in (site.tree, site.tree / "vocabulary")} == {0o755}


@pytest.mark.parametrize("kind", SPOILT)
def test_a_tree_that_changed_on_the_node_is_found_and_mended(site: Site, kind: str) -> None:
    site.up()
    spoil, expected = SPOILT[kind]
    spoil(site.tree)
    if kind == "a flipped byte":
        os.utime(site.tree / SHARDS[1])  # whoever writes to a file moves its time; a disk that rots does not
    outcome = site.up()
    assert outcome.changed
    assert site.held() == site.sent()
    assert any(path in line for path in expected for line in site.lines)
    assert set(outcome.delivered) <= {"chat"}
    assert site.up().changed is False


def test_only_what_differs_is_sent_again(site: Site) -> None:
    site.up()
    old = (site.tree / SHARDS[0]).stat().st_ino
    (site.tree / SHARDS[1]).write_bytes(b"x")
    outcome = site.up()
    assert outcome.delivered == {"chat": (site.source / SHARDS[1]).stat().st_size}
    assert (site.tree / SHARDS[0]).stat().st_ino == old


def test_a_time_that_changed_without_the_content_is_read_again_and_nothing_is_sent(site: Site) -> None:
    site.up()
    os.utime(site.tree / SHARDS[0])
    outcome = site.up()
    assert (outcome.changed, outcome.read, outcome.delivered) == (False, ["chat"], {})
    assert site.asked == ["look", "verify"]
    assert site.up().read == []


def test_a_new_version_takes_the_place_of_the_old_one_only_when_it_is_right(site: Site) -> None:
    site.up()
    before = site.held()
    sound = (site.source / SHARDS[1]).read_bytes()
    (site.source / SHARDS[1]).write_bytes(sound.replace(b"\2", b"\7"))
    site.describe()
    flip(site.source / SHARDS[1])
    with pytest.raises(DeliveryError, match=rf"{SHARDS[1]} has other content"):
        site.up()
    assert {path: data for path, data in site.held().items() if path.startswith("chat/")} == before
    flip(site.source / SHARDS[1])
    site.up()
    assert site.held() == site.sent() != before


def test_a_corrupt_source_is_refused_with_the_name_of_the_file_and_mended_by_the_next_run(site: Site) -> None:
    flip(site.source / SHARDS[1])
    with pytest.raises(DeliveryError) as refused:
        site.up()
    assert f"model chat: {site.tree}: {SHARDS[1]} has other content" in str(refused.value)
    assert "nothing is served from it" in str(refused.value)
    assert not site.tree.exists()
    flip(site.source / SHARDS[1])  # size and time are the same, so rsync alone would not look at it again
    outcome = site.up()
    assert outcome.delivered == {"chat": (site.source / SHARDS[1]).stat().st_size}
    assert site.held() == site.sent()


@pytest.mark.parametrize("kind", ["a missing shard", "a cut file", "a git-lfs pointer"])
def test_a_source_that_cannot_be_right_is_refused_before_anything_is_made(site: Site, kind: str) -> None:
    spoil, expected = SPOILT[kind]
    spoil(site.source)
    with pytest.raises(DeliveryError) as refused:
        site.up()
    assert all(f"{site.source} on the control host: {path}" in str(refused.value) for path in expected)
    assert "nothing was sent" in str(refused.value)
    assert not site.store.exists()


def test_a_model_in_place_is_read_once_and_never_touched(site: Site) -> None:
    shutil.copytree(site.source, site.root / "nfs")
    site.entries[0] |= {"source": "path", "path": str(site.root / "nfs")}
    before = states(site.root / "nfs")
    outcome = site.up()
    assert (outcome.read, outcome.changed, site.asked) == (["chat"], False, ["look", "verify"])
    assert site.up().read == []
    assert states(site.root / "nfs") == before
    assert not site.store.exists()
    assert site.record["models"] == {}
    assert (site.state / "models/chat.json").exists()


@pytest.mark.parametrize("kind", SPOILT)
def test_a_model_in_place_that_is_not_what_it_should_be_is_refused(site: Site, kind: str) -> None:
    shutil.copytree(site.source, site.root / "nfs")
    site.entries[0] |= {"source": "path", "path": str(site.root / "nfs")}
    spoil, expected = SPOILT[kind]
    spoil(site.root / "nfs")
    for _ in range(2):
        with pytest.raises(DeliveryError) as refused:
            site.up()
        found = [line for line in str(refused.value).splitlines() if line.startswith("model chat: ")]
        assert len(found) == len(expected)
        assert all(f"{path} " in str(refused.value) for path in expected)
    assert "was not touched" in str(refused.value)


def test_a_model_in_place_without_a_manifest_is_served_as_it_is(site: Site) -> None:
    site.entries[0] = {"name": "chat", "source": "path", "path": "/nowhere"}
    assert site.up().verified == []
    assert site.asked == []


def test_a_path_can_be_copied_to_the_store(site: Site) -> None:
    site.entries[0]["source"] = "path"
    site.more["copy"] = True
    outcome = site.up()
    assert outcome.delivered["chat"] > 0
    assert site.held() == site.sent()


def test_a_bundle_has_the_model_and_its_manifest(site: Site) -> None:
    bundle = site.root / "bundle/models"
    bundle.mkdir(parents=True)
    shutil.copytree(site.source, bundle / "chat")
    shutil.copyfile(site.known, bundle / "chat.json")
    site.entries[0] = {"name": "chat", "source": "bundle", "path": str(site.root / "bundle")}
    site.up()
    assert site.held() == site.sent()


def test_links_of_a_download_cache_arrive_as_files(site: Site) -> None:
    (site.source / SHARDS[0]).rename(site.root / "blob")
    (site.source / SHARDS[0]).symlink_to(site.root / "blob")
    site.up()
    assert not (site.tree / SHARDS[0]).is_symlink()
    assert site.held() == site.sent()


def test_a_folder_of_somebody_else_is_not_taken_over(site: Site) -> None:
    site.tree.mkdir(parents=True)
    with pytest.raises(DeliveryError, match=r"exists already and vllm-node did not bring it"):
        site.up()
    assert list(site.tree.iterdir()) == []


def test_too_little_space_is_told_before_anything_is_made(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site.module, "SPARE_BYTES", 1 << 60)
    with pytest.raises(DeliveryError, match=rf"{site.store} has [\d.]+ GiB free, and 0.00 GiB are to be brought \(chat 0.00 GiB\)"):
        site.up()
    assert not site.store.exists()


@pytest.mark.parametrize("there", ["linked", "begun"])
def test_what_is_linked_or_begun_takes_no_space_again(site: Site, monkeypatch: pytest.MonkeyPatch, there: str) -> None:
    total = sum(map(len, site.sent().values()))
    if there == "linked":
        site.up()
        (site.tree / "config.json").unlink()
    else:
        incoming = Path(f"{site.tree}.incoming")
        incoming.mkdir(parents=True)
        shutil.copyfile(site.source / SHARDS[0], incoming / SHARDS[0])
    free = os.statvfs(site.root)
    almost_full = os.statvfs_result((1, 1, free[2], total - 4096, total - 4096, *free[5:]))
    monkeypatch.setattr(os, "statvfs", lambda _: almost_full)
    assert site.up().changed


def test_a_node_without_rsync_says_what_to_install(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site.module.shutil, "which", lambda _: None)
    with pytest.raises(DeliveryError, match="dnf install rsync"):
        site.up()


def test_check_mode_says_that_there_is_something_to_do_and_does_nothing(site: Site) -> None:
    site.more["dry"] = True
    assert site.up().changed
    assert site.asked == ["look"]
    assert not site.store.exists()
    assert not site.state.exists()


def test_a_tree_that_is_named_no_more_stays_and_is_told(site: Site) -> None:
    site.up()
    other = model(site.root / "control/other")
    manifests.write(manifests.make(other), site.known)
    site.entries = [{"name": "other", "source": "control", "path": str(other), "manifest": str(site.known)}]
    assert site.up().unlisted == [str(site.tree)]
    assert site.tree.is_dir()


def test_a_run_that_ended_between_the_two_renames_is_mended(site: Site) -> None:
    site.up()
    before = site.held()
    (site.source / "config.json").write_text("{}")
    site.describe()
    incoming, replaced = Path(f"{site.tree}.incoming"), Path(f"{site.tree}.replaced")
    site.tree.rename(replaced)
    shutil.copytree(site.source, incoming)
    flip(site.source / "config.json")
    (incoming / "config.json").unlink()
    with pytest.raises(DeliveryError, match=r"config.json has other content"):
        site.up()
    assert {path: data for path, data in site.held().items() if path.startswith("chat/")} == before
    flip(site.source / "config.json")
    assert site.up().delivered == {"chat": 2}
    assert site.held() == site.sent()


def test_what_was_left_beside_a_whole_tree_goes(site: Site) -> None:
    site.up()
    Path(f"{site.tree}.replaced").mkdir()
    (Path(f"{site.tree}.incoming") / "x").mkdir(parents=True)
    outcome = site.up()
    assert (outcome.changed, site.asked) == (True, ["look"])
    assert sorted(path.name for path in site.store.iterdir()) == [".chat.json", "chat"]


def test_files_of_another_version_in_the_incoming_tree_go(site: Site) -> None:
    site.up()
    incoming = Path(f"{site.tree}.incoming")
    (incoming / "old").mkdir(parents=True)
    (incoming / "old/file").write_text("x")
    (incoming / "config.json").symlink_to("/etc/passwd")
    (incoming / SHARDS[0]).mkdir()
    (site.source / "tokenizer.json").write_text("[]")
    site.describe()
    site.up()
    assert site.held() == site.sent()


def test_a_copy_never_writes_into_a_file_that_is_served(site: Site) -> None:
    """An incoming file that is another name of a served one, and is to be copied after all."""
    site.up()
    served = (site.tree / SHARDS[0]).read_bytes()
    incoming = Path(f"{site.tree}.incoming")
    incoming.mkdir()
    os.link(site.tree / SHARDS[0], incoming / SHARDS[0])
    (site.source / SHARDS[0]).write_bytes(served.replace(b"\1", b"\7"))
    site.describe()
    hold = os.open(site.tree / SHARDS[0], os.O_RDONLY)
    try:
        site.up()
        assert os.pread(hold, len(served) + 1, 0) == served
    finally:
        os.close(hold)
    assert site.held() == site.sent()


def test_a_copy_that_an_earlier_run_has_left_at_work_is_ended(site: Site) -> None:
    incoming, other = Path(f"{site.tree}.incoming/vocabulary"), site.root / "other"
    incoming.mkdir(parents=True)
    other.mkdir()
    shutil.copy("/bin/sleep", site.root / "rsync")
    words = [str(site.root / "rsync"), "60"]
    with subprocess.Popen(words, cwd=incoming) as left, subprocess.Popen(words, cwd=other) as foreign:
        try:
            site.up()
            assert left.wait(5) == -signal.SIGKILL
            assert foreign.poll() is None
        finally:
            left.kill()
            foreign.kill()


def test_a_damaged_mark_only_costs_a_reading(site: Site) -> None:
    site.up()
    (site.store / ".chat.json").write_text('{"schema": 1, "files": {"a": 1}}')
    outcome = site.up()
    assert (outcome.read, outcome.delivered) == (["chat"], {})


def test_a_killed_rsync_goes_on_where_it_stopped(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.rmtree(site.source)
    model(site.source, size=24 << 20)
    site.describe()
    slow = transfer.command

    def limited(*words: Any, **more: Any) -> list[str]:
        return slow(*words, **{**more, "bandwidth": "12m"})

    monkeypatch.setattr(transfer, "command", limited)
    incoming = Path(f"{site.tree}.incoming")

    def kill() -> None:
        while sum(path.stat().st_size for path in incoming.rglob("*.safetensors")) < 16 << 20:
            time.sleep(0.02)
        mine = subprocess.run(["pgrep", "-f", f"rsync .*{site.source}/"], capture_output=True, text=True, check=True)
        for pid in mine.stdout.split():
            os.kill(int(pid), signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    with pytest.raises(DeliveryError, match="it goes on where it stopped"):
        site.up()
    killer.join()
    assert not site.tree.exists()
    monkeypatch.setattr(transfer, "command", slow)
    outcome = site.up()
    total = sum(len(data) for data in site.sent().values())
    assert 0 < outcome.delivered["chat"] < total - (12 << 20)
    assert site.held() == site.sent()


def test_a_reading_that_is_ended_by_somebody_is_told_and_the_next_run_goes_on(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading = shared_code("model_reading")
    lock = site.root / "run/chat.incoming.lock"

    def kill() -> None:
        while not (lock.exists() and lock.read_text()):
            time.sleep(0.02)
        os.kill(int(lock.read_text()), signal.SIGKILL)

    with monkeypatch.context() as slow:
        slow.setattr(reading, "hash_file", lambda *_: time.sleep(60))
        killer = threading.Thread(target=kill)
        killer.start()
        with pytest.raises(DeliveryError, match="was ended by somebody else; run this again"):
            site.up()
        killer.join()
    assert site.up().delivered == {"chat": 0}
    assert site.held() == site.sent()


def test_a_long_reading_is_waited_for_in_small_questions(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    reading = shared_code("model_reading")
    really = reading.hash_file

    def slow(*words: Any) -> Any:
        time.sleep(0.3)
        return really(*words)

    monkeypatch.setattr(reading, "hash_file", slow)
    site.more["wait_s"] = 0
    site.up()
    assert site.asked[:3] == ["look", "prepare", "verify"]
    assert site.asked[-1] == "verify"
    assert set(site.asked[3:-1]) == {"wait"}
    assert site.held() == site.sent()


@pytest.fixture
def enforcing(site: Site, monkeypatch: pytest.MonkeyPatch) -> Path:
    """SELinux is on, as far as this code can see; the folder has its programs."""
    (site.root / "enforce").write_text("1")
    monkeypatch.setattr(shared_code("model_context"), "_ENFORCE", str(site.root / "enforce"))
    programs = site.root / "bin"
    for name in ("semanage", "restorecon"):
        program(programs, name)
    program(programs, "matchpathcon", "echo system_u:object_r:var_t:s0")
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    return programs


def test_selinux_gets_one_rule_for_the_store_which_is_on_record(site: Site, enforcing: Path) -> None:
    site.up()
    pattern = re.escape(str(site.store)) + "(/.*)?"
    assert calls(enforcing, "semanage") == [["semanage", "fcontext", "--add", "--type", "container_file_t", pattern]]
    assert site.record["fcontexts"] == [pattern]
    labelled = [["restorecon", str(site.store)], ["restorecon", "-R", f"{site.tree}.incoming"]]
    assert calls(enforcing, "restorecon") == labelled


def test_selinux_that_knows_the_store_gets_no_rule(site: Site, enforcing: Path) -> None:
    program(enforcing, "matchpathcon", "echo system_u:object_r:container_file_t:s0")
    site.up()
    assert calls(enforcing, "semanage") == []
    assert site.record["fcontexts"] == []


def test_a_store_that_was_there_before_keeps_its_label(site: Site, enforcing: Path) -> None:
    site.store.mkdir(parents=True)
    site.up()
    assert calls(enforcing, "restorecon") == [["restorecon", "-R", f"{site.tree}.incoming"]]


def test_selinux_that_refuses_stops_the_delivery(site: Site, enforcing: Path) -> None:
    program(enforcing, "semanage", "echo ValueError: no; exit 1")
    with pytest.raises(DeliveryError, match=r"semanage cannot give .* the type container_file_t: ValueError: no"):
        site.up()


def test_the_mark_says_what_was_verified(site: Site) -> None:
    site.up()
    mark = json.loads((site.store / ".chat.json").read_text())
    assert mark["manifest"] == manifests.read(site.known).fingerprint
    status = (site.tree / SHARDS[0]).stat()
    sha256 = manifests.read(site.known).by_path[SHARDS[0]]["sha256"]
    assert mark["files"][SHARDS[0]] == [status.st_size, status.st_mtime_ns, status.st_ino, sha256]
