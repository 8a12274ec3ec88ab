"""Keys, version locks and packages in the manifest, against an rpm that answers from files of the test."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.unit.role_code import calls, load, manifest_code, on_path, program, run_module, shared_code
from tests.unit.test_node_teardown import Node

# Its database is a folder with a file a package; a key's entry is named after the words of the key.
RPM = """
cd {database}
case "$1" in
-qa) for each in *; do [ "$each" = '*' ] || case "$3" in
  *EPOCHNUM*) IFS=- read -r name version release <<END
$each
END
    printf '%s\\t0\\t%s\\t%s\\n' "$name" "$version" "${{release%.*}}";;
  *) echo "$each";; esac; done;;
-q) ls ../keys | grep . || {{ echo 'package gpg-pubkey is not installed'; exit 1; }};;
--import) while read -r word; do : > ../keys/gpg-pubkey-$word; done < $2; {after_import};;
--erase) shift; for each; do [ -e "$each" ] || [ -e ../keys/$each ] || {{ echo "error: $each"; exit 1; }}; done
  for each; do rm -f "$each" ../keys/$each; done;;
esac
"""


class Database:
    """A node's RPM database, version lock list and manifest in a folder."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root, self.code = root, shared_code("rpm_marks")
        for folder in ("database", "keys", "plugins"):
            (root / folder).mkdir()
        self.list = root / "plugins/versionlock.list"
        config = root / "plugins/versionlock.conf"
        config.write_text(f"[main]\nenabled = 1\nlocklist = {self.list}\n")
        monkeypatch.setattr(self.code, "PLUGIN_CONFIG", str(config))
        monkeypatch.setattr(self.code, "CACHE", str(root / "cache-*"))
        self.rpm()

    def rpm(self, after_import: str = ":") -> None:
        program(self.root / "bin", "rpm", RPM.format(database=self.root / "database", after_import=after_import))
        for tool in ("ls", "grep", "rm"):
            place = self.root / "bin" / tool
            if not place.exists():
                place.symlink_to(f"/bin/{tool}")

    def installed(self, *names: str) -> None:
        for name in names:
            (self.root / "database" / name).touch()

    @property
    def keys(self) -> list[str]:
        return sorted(path.name.removeprefix("gpg-pubkey-") for path in (self.root / "keys").iterdir())

    def manifest(self) -> Any:
        return manifest_code().Manifest.load(str(self.root / "state"))


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Database:
    on_path(monkeypatch, tmp_path / "bin")
    monkeypatch.setattr("os.fsync", lambda _: None)
    return Database(tmp_path, monkeypatch)


def test_a_key_is_trusted_once_and_forgotten_again(node: Database) -> None:
    (node.root / "keys/gpg-pubkey-theirs").touch()
    assert node.code.trust(node.manifest(), "ours\n")
    assert not node.code.trust(node.manifest(), "ours\n")
    assert node.keys == ["ours", "theirs"]
    assert node.code.forget_keys(node.manifest()) == ["gpg-pubkey-ours"]
    assert node.keys == ["theirs"]
    assert node.code.forget_keys(node.manifest()) == []


def test_a_key_that_was_there_before_stays(node: Database) -> None:
    (node.root / "keys/gpg-pubkey-theirs").touch()
    node.code.trust(node.manifest(), "theirs\n")
    node.code.forget_keys(node.manifest())
    assert node.keys == ["theirs"]


def test_a_new_key_takes_the_place_of_the_one_before(node: Database) -> None:
    node.code.trust(node.manifest(), "old\nolder\n")
    assert node.code.trust(node.manifest(), "new\n")
    assert node.keys == ["new"]


def test_an_import_that_was_cut_off_is_found_and_undone(node: Database) -> None:
    (node.root / "keys/gpg-pubkey-theirs").touch()
    node.rpm(after_import="exit 9")
    with pytest.raises(node.code.RpmError):
        node.code.trust(node.manifest(), "ours\n")
    assert node.keys == ["ours", "theirs"]
    node.rpm()
    assert node.code.trust(node.manifest(), "ours\n")
    (node.root / "keys/gpg-pubkey-later").touch()
    node.code.forget_keys(node.manifest())
    assert node.keys == ["later", "theirs"]


def test_what_is_installed_is_locked_in_its_version(node: Database) -> None:
    node.installed("driver-570.1-1.el9.x86_64", "podman-5.4-1.el9.x86_64")
    locks = node.code.wanted_locks(["driver*", "fabric*"])
    assert locks == ["driver-0:570.1-1.el9.*"]
    assert node.code.set_locks(node.manifest(), locks)
    assert node.list.read_text() == "driver-0:570.1-1.el9.*\n"
    assert not node.code.set_locks(node.manifest(), locks)


def test_locks_of_the_site_are_left_as_they_are(node: Database) -> None:
    theirs = "# why\n\nkernel-0:5.14-1.*\n!bad-0:1-1.*\n"
    node.list.write_text(theirs)
    node.list.chmod(0o640)
    node.code.set_locks(node.manifest(), ["a-0:1-1.*", "kernel-0:5.14-1.*"])
    assert node.list.read_text() == theirs + "a-0:1-1.*\n"
    node.code.set_locks(node.manifest(), ["a-0:2-1.*"])
    assert node.list.read_text() == theirs + "a-0:2-1.*\n"
    node.code.set_locks(node.manifest(), [])
    assert node.list.read_text() == theirs
    assert node.list.stat().st_mode & 0o777 == 0o640


def test_a_list_that_was_made_goes_with_its_last_lock(node: Database) -> None:
    node.code.set_locks(node.manifest(), ["a-0:1-1.*"])
    node.code.set_locks(node.manifest(), [])
    assert not node.list.exists()


def test_an_empty_list_that_was_there_stays(node: Database) -> None:
    node.list.touch()
    node.code.set_locks(node.manifest(), ["a-0:1-1.*"])
    node.code.set_locks(node.manifest(), [])
    assert node.list.read_text() == ""


@pytest.mark.parametrize("config", [None, "[main]\nenabled = 0\nlocklist = /x\n", "no section\n"])
def test_a_lock_that_nobody_heeds_is_refused(node: Database, config: str | None) -> None:
    file = Path(node.code.PLUGIN_CONFIG)
    if config is None:
        file.unlink()
    else:
        file.write_text(config)
    with pytest.raises(node.code.RpmError, match="python3-dnf-plugin-versionlock"):
        node.code.set_locks(node.manifest(), ["a-0:1-1.*"])
    assert not node.code.set_locks(node.manifest(), [])


def test_packages_are_noted_before_and_what_they_changed_afterwards(node: Database, capsys: pytest.CaptureFixture[str]) -> None:
    module = load("roles/packages/library/node_packages.py")
    state = str(node.root / "state")

    def call(**more: Any) -> dict[str, Any]:
        return run_module(module, capsys, state_dir=state, **more)

    assert call(packages={"podman-5.4-1.x86_64": None}, gpg_key="ours\n")["changed"]
    assert node.manifest().data["rpm"]["packages"] == {"podman-5.4-1.x86_64": None}
    node.installed("driver-570.1-1.x86_64")
    before = Path(state, "before-packages.json")
    before.write_text('{"schema": 1}')
    # Interrupted here: the next run finds the snapshot, and sets no lock before it was compared.
    answer = call(gpg_key="ours\n", locks=["driver"])
    assert (answer["before"], node.list.exists()) == ({"schema": 1}, False)
    answer = call(changes={"files:/etc/x": "dir"}, locks=["driver"])
    assert answer["locked"] == ["driver-0:570.1-1.*"]
    assert "before" not in answer
    assert not before.exists()
    assert not call(gpg_key="ours\n", locks=["driver"])["changed"]
    # A package that is replaced a second time is still what it was as found.
    call(packages={"podman-5.4-1.x86_64": "podman-5.3-1.x86_64"})
    assert node.manifest().data["rpm"]["packages"] == {"podman-5.4-1.x86_64": None}
    assert call(missing_of=["driver", "podman"])["missing"] == ["podman"]


class TestTeardown:
    """Through the module, on the node of its own tests."""

    @pytest.fixture
    def brought_up(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Node:
        on_path(monkeypatch, tmp_path / "bin")
        monkeypatch.setattr("os.fsync", lambda _: None)
        node, database = Node(tmp_path, capsys), Database(tmp_path, monkeypatch)
        manifest = node.brought_up()
        database.installed("podman-5.4-1.x86_64", "crun-1.2-1.x86_64", "theirs-1-1.x86_64")
        database.code.trust(manifest, "ours\n")
        database.code.set_locks(manifest, ["podman-0:5.4-1.*"])
        known = database.code.marks(manifest)
        known["packages"] = {"podman-5.4-1.x86_64": None, "crun-1.2-1.x86_64": "crun-1.1-1.x86_64", "gone-1-1.x86_64": None}
        known["changes"] = {"files:/etc/x": "dir"}
        manifest.save()
        (tmp_path / "cache-1").mkdir()
        self.database = database
        return node

    def test_packages_stay_and_are_named_and_the_rest_goes(self, brought_up: Node) -> None:
        told = brought_up.down()
        assert [entry["name"] for entry in told["kept"]] == [
            "crun-1.2-1.x86_64 (found as crun-1.1-1.x86_64)",
            "podman-5.4-1.x86_64",
        ]
        assert {"RPM key gpg-pubkey-ours", "version lock podman-0:5.4-1.*"} <= set(told["removed"])
        assert (told["left"], told["by_packages"]) == ([], {"files:/etc/x": "dir"})
        assert (self.database.keys, self.database.list.exists(), (brought_up.root / "cache-1").exists()) == ([], False, False)
        again = brought_up.down()
        assert (again["kept"], again["by_packages"]) == (told["kept"], told["by_packages"])

    def test_asked_for_those_that_were_not_there_go(self, brought_up: Node) -> None:
        told = brought_up.down(remove=["packages"])
        assert [call for call in calls(brought_up.programs, "rpm") if call[1] == "--erase"][-1][2:] == ["podman-5.4-1.x86_64"]
        assert [entry["name"] for entry in told["kept"]] == ["crun-1.2-1.x86_64 (found as crun-1.1-1.x86_64)"]
        assert sorted(path.name for path in (brought_up.root / "database").iterdir()) == ["crun-1.2-1.x86_64", "theirs-1-1.x86_64"]

    def test_a_package_that_is_needed_stays_and_is_told(self, brought_up: Node) -> None:
        text = (brought_up.programs / "rpm").read_text()
        refuse = 'case "$*" in "--erase podman"*) echo "error: podman is needed by theirs" >&2; exit 1;; esac\n'
        (brought_up.programs / "rpm").write_text(text.replace("\ncd ", f"\n{refuse}cd ", 1))
        told = brought_up.down(remove=["packages"])
        assert told["left"] == ["packages podman-5.4-1.x86_64: error: podman is needed by theirs"]
        assert "podman-5.4-1.x86_64" in [entry["name"] for entry in told["kept"]]

    def test_a_trial_changes_nothing(self, brought_up: Node) -> None:
        state = json.loads((brought_up.state / "manifest.json").read_text())
        told = brought_up.down(check=True, remove=["packages"])
        assert "packages podman-5.4-1.x86_64" in told["removed"]
        assert json.loads((brought_up.state / "manifest.json").read_text()) == state
        assert self.database.keys == ["ours"]
        assert self.database.list.exists()
