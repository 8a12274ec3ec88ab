"""Installing what was staged: what counts as an input of a unit, and a run that changes only what is asked for."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.unit.role_code import answers, calls, load, manifest_code, on_path, program, run_module

SALT = "00" * 16
UNIT = """[Container]
Label=io.vllm-node.inputs=@INPUTS@
Volume=/etc/x/config:/config:ro,Z
Volume=x-data:/data:rw
Secret=password,type=mount,target=/run/secrets/password
[Service]
EnvironmentFile=/etc/x.env
"""
FILES = {"/etc/x/config/a.yml": "a", "/etc/x.env": "E=1", "/etc/x/configure": "no", "/etc/y": "y"}
SECRETS = {"password": "one", "other": "two"}
# Says that it makes a service of every .container file, as the real one does with -dryrun.
GENERATOR = """
cd "$QUADLET_UNIT_DIRS"
for file in *; do
  read -r text < "$file"
  case "$text" in
    Bogus*) echo "converting $file: unsupported key 'Bogus'" >&2; exit 1;;
    Silent*) ;;
    *) echo "---${file%.container}.service---";;
  esac
done
"""


@pytest.fixture(scope="module")
def apply() -> Any:
    return load("roles/quadlet/library/node_apply.py")


def hashed(apply: Any, unit: str = UNIT, files: dict[str, str] | None = None, **secrets: str) -> str:
    found: str = apply.inputs_hash(unit, {**FILES, **(files or {})}, {**SECRETS, **secrets}, SALT)
    return found


@pytest.mark.parametrize(
    "change",
    [
        {"unit": UNIT.replace(":ro", ":rw")},
        {"files": {"/etc/x/config/a.yml": "b"}},
        {"files": {"/etc/x/config/new.yml": ""}},
        {"files": {"/etc/x.env": "E=2"}},
        {"password": "two"},
    ],
)
def test_the_hash_changes_with_the_unit_with_what_it_mounts_and_with_its_secrets(
    apply: Any, change: dict[str, Any]
) -> None:
    assert hashed(apply, **change) != hashed(apply)


@pytest.mark.parametrize(
    "change",
    [{"files": {"/etc/y": "z"}}, {"files": {"/etc/x/configure": "yes"}}, {"files": {"/new": ""}}, {"other": "3"}],
)
def test_the_hash_stays_when_something_else_changes(apply: Any, change: dict[str, Any]) -> None:
    assert hashed(apply, **change) == hashed(apply)


def test_a_file_that_is_mounted_by_its_own_name_counts(apply: Any) -> None:
    unit = "[Container]\nVolume=/etc/y:/y:ro\n"
    assert hashed(apply, unit, {"/etc/y": "z"}) != hashed(apply, unit)


def test_a_unit_that_looks_at_the_whole_node_does_not_restart_with_every_file(apply: Any) -> None:
    unit = "[Container]\nVolume=/:/host/root:ro,rslave\n"
    assert hashed(apply, unit, {"/etc/y": "z"}) == hashed(apply, unit)


def test_a_secret_does_not_show_in_the_hash_of_another_node(apply: Any) -> None:
    assert apply.inputs_hash(UNIT, FILES, SECRETS, "11" * 16) != hashed(apply)


def test_placeholders_are_filled_from_the_texts_as_they_were_staged(apply: Any) -> None:
    wanted = {"/etc/containers/systemd/x.container": {"content": UNIT}, "/etc/y": {"content": "@INPUT@"}}
    apply.fill_in(wanted, SECRETS, SALT)
    label = apply.inputs_hash(UNIT, {"/etc/y": "@INPUT@"}, SECRETS, SALT)
    assert wanted["/etc/containers/systemd/x.container"]["content"] == UNIT.replace("@INPUTS@", label)
    assert wanted["/etc/y"]["content"] == "@INPUT@"
    assert len(label) == 24


class Node:
    """A node in a folder: its unit folders, its storage, a Quadlet generator, and podman and systemctl."""

    def __init__(self, apply: Any, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.apply, self.root, self.capsys = apply, root, capsys
        self.units, self.programs, self.state = root / "quadlets", root / "bin", root / "state"
        program(self.programs, "quadlet", GENERATOR)
        program(self.programs, "systemctl")
        self.podman({})
        apply.UNIT_FOLDER, apply.PLAIN_UNIT_FOLDER = f"{self.units}/", f"{root}/units/"
        apply.GENERATORS, apply.STORAGE = (str(self.programs / "quadlet"),), str(root / "storage")

    def podman(self, table: dict[str, tuple[int, str]]) -> None:
        program(self.programs, "podman", answers(table))

    def file(self, path: str, content: str, **more: Any) -> dict[str, Any]:
        return {"path": str(self.root / path), "content": content, "owner": os.getuid(), "group": os.getgid(), **more}

    def run(self, *files: dict[str, Any], check: bool = False, **more: Any) -> dict[str, Any]:
        arguments = {"state_dir": str(self.state), "scope": "stack", "files": list(files), **more}
        arguments |= {"_ansible_check_mode": check, "_ansible_diff": True}
        return run_module(self.apply, self.capsys, **arguments)

    @property
    def manifest(self) -> dict[str, Any]:
        found: dict[str, Any] = manifest_code().Manifest.load(str(self.state)).data
        return found


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Node:
    on_path(monkeypatch, tmp_path / "bin")
    monkeypatch.setattr("os.fsync", lambda _: None)
    return Node(load("roles/quadlet/library/node_apply.py"), tmp_path, capsys)


def test_files_are_installed_once_and_a_second_run_changes_nothing(node: Node) -> None:
    wanted = node.file("etc/a", "one\n", mode="0640")
    first, second = node.run(wanted), node.run(wanted)
    path = node.root / "etc/a"
    assert (first["changed"], first["changed_files"]) == (True, [str(path)])
    assert (path.read_text(), path.stat().st_mode & 0o777) == ("one\n", 0o640)
    assert (second["changed"], second["changed_files"], second["diff"]) == (False, [], [])
    assert node.manifest["files"][str(path)]["scope"] == "stack"


def test_only_what_changed_is_written(node: Node) -> None:
    node.run(node.file("a", "1"), node.file("b", "1"))
    inode = (node.root / "a").stat().st_ino
    again = node.run(node.file("a", "1"), node.file("b", "2"))
    assert again["changed_files"] == [str(node.root / "b")]
    assert (node.root / "a").stat().st_ino == inode


@pytest.mark.parametrize("harm", ["text", "mode", "gone", "link"])
def test_drift_is_healed(node: Node, harm: str) -> None:
    path = node.root / "a"
    node.run(node.file("a", "1"))
    if harm == "text":
        path.write_text("2")
    elif harm == "mode":
        path.chmod(0o600)
    else:
        path.unlink()
    if harm == "link":
        path.symlink_to("/dev/null")
    assert node.run(node.file("a", "1"))["changed_files"] == [str(path)]
    assert (path.read_text(), path.stat().st_mode & 0o777, path.is_symlink()) == ("1", 0o644, False)


def test_check_mode_shows_everything_and_touches_nothing(node: Node) -> None:
    told = node.run(
        node.file("etc/a", "new\n"), check=True, secrets=[{"name": "s", "value": "hush-hush"}], volumes=["v"]
    )
    assert told["changed"] is True
    assert told["changed_secrets"] == ["s"]
    assert told["diff"][0]["after"] == "new\n"
    assert "hush-hush" not in json.dumps(told)
    assert sorted(path.name for path in node.root.iterdir()) == ["bin"]


def test_the_content_of_a_secret_file_is_hidden(node: Node) -> None:
    path = "etc/auth-vllm-node.json"
    node.run(secret_files=[node.file(path, "old-credential")])
    told = node.run(node.file("etc/plain", "shown"), secret_files=[node.file(path, "new-credential")])
    assert told["changed_files"] == [str(node.root / "etc/plain"), str(node.root / path)]
    assert "credential" not in json.dumps(told)
    assert "shown" in json.dumps(told["diff"])
    assert (node.root / path).read_text() == "new-credential"


def test_a_secret_file_that_a_unit_mounts_is_one_of_its_inputs(node: Node) -> None:
    unit = node.file("quadlets/x.container", f"Label=@INPUTS@\nVolume={node.root}/etc/key:/key:ro\n")
    for content, changed in (("one", 2), ("one", 0), ("two", 2)):
        told = node.run(dict(unit), secret_files=[node.file("etc/key", content)])
        assert len(told["changed_files"]) == changed


def test_what_is_no_longer_wanted_goes_but_only_within_its_scope(node: Node) -> None:
    node.run(node.file("host", "1"), scope="host")
    node.run(node.file("a", "1"), node.file("b", "1"))
    told = node.run(node.file("a", "1"))
    assert told["removed_files"] == [str(node.root / "b")]
    assert not (node.root / "b").exists()
    assert (node.root / "host").exists()
    assert str(node.root / "b") not in node.manifest["files"]


def test_services_are_stopped_before_any_of_their_files_goes(node: Node) -> None:
    script = node.root / "script"
    program(node.programs, "systemctl", f"test -e {script} && echo True > {node.root / 'seen'}")
    node.run(node.file("script", "1"), node.file("units/x.service", "[Unit]"), node.file("quadlets/y.container", ""))
    node.run()
    assert calls(node.programs, "systemctl") == [["systemctl", "stop", "x.service", "y.service"]]
    assert (node.root / "seen").read_text() == "True\n"
    assert not script.exists()


@pytest.mark.parametrize(
    ("text", "said"),
    [("Bogus=1", "unsupported key 'Bogus'"), ("Silent=1", "x.container gives no x.service")],
)
def test_a_unit_that_the_generator_refuses_stops_everything(node: Node, text: str, said: str) -> None:
    told = node.run(node.file("etc/a", "1"), node.file("quadlets/x.container", text))
    assert told["failed"] is True
    assert "nothing was installed" in told["msg"]
    assert said in told["msg"]
    assert not (node.root / "etc").exists()
    assert not node.state.exists()


def test_a_node_without_a_generator_is_told_what_it_needs(node: Node) -> None:
    node.apply.GENERATORS = ("/nonexistent/quadlet",)
    told = node.run(node.file("quadlets/x.container", ""))
    assert "podman 5.4 or later" in told["msg"]


def test_a_secret_goes_in_on_standard_input_and_is_recorded(node: Node) -> None:
    program(node.programs, "podman", f"/bin/cat > {node.root / 'given'}")
    told = node.run(secrets=[{"name": "s", "value": 12345}])
    assert told["changed_secrets"] == ["s"]
    assert (node.root / "given").read_text() == "12345"
    assert calls(node.programs, "podman") == [["podman", "secret", "create", "--replace", "s", "-"]]
    assert node.manifest["secrets"] == ["s"]


def test_a_secret_that_has_its_value_already_is_left_alone(node: Node) -> None:
    (node.root / "storage/secrets").mkdir(parents=True)
    node.podman({"secret inspect": (0, json.dumps([{"SecretData": "hush-hush"}]))})
    assert node.run(secrets=[{"name": "s", "value": "hush-hush"}])["changed"] is False


def test_a_secret_that_cannot_be_made_is_named_without_its_value(node: Node) -> None:
    program(node.programs, "podman", "echo store is broken >&2; exit 125")
    told = node.run(secrets=[{"name": "s", "value": "hush-hush"}])
    assert told["failed"] is True
    assert "podman secret s cannot be made: store is broken" in told["msg"]
    assert "hush-hush" not in json.dumps(told)
    assert node.manifest["secrets"] == ["s"]


def test_other_peoples_volumes_and_secrets_are_not_taken_over(node: Node) -> None:
    (node.root / "storage/secrets").mkdir(parents=True)
    inspected = json.dumps([{"SecretData": "theirs"}])
    node.podman({"volume ls": (0, "grafana-data\nmine"), "secret inspect": (0, inspected)})
    told = node.run(node.file("a", "1"), volumes=["grafana-data", "x"], secrets=[{"name": "s", "value": "hush-hush"}])
    assert told["failed"] is True
    assert "volume grafana-data exists already" in told["msg"]
    assert "secret s exists already" in told["msg"]
    assert not (node.root / "a").exists()
    assert node.manifest["volumes"] == []


def test_volumes_of_an_earlier_run_are_ours(node: Node) -> None:
    node.run(volumes=["grafana-data"])
    (node.root / "storage").mkdir()
    node.podman({"volume ls": (0, "grafana-data")})
    assert node.run(volumes=["grafana-data"])["changed"] is False
    assert node.manifest["volumes"] == ["grafana-data"]


def test_a_podman_that_cannot_tell_its_volumes_is_not_taken_for_an_empty_one(node: Node) -> None:
    (node.root / "storage").mkdir()
    node.podman({"volume ls": (125, "")})
    assert "podman volume ls" in node.run(volumes=["grafana-data"])["msg"]


def test_a_damaged_manifest_stops_the_run_before_it_changes_anything(node: Node) -> None:
    node.state.mkdir()
    (node.state / "manifest.json").write_text("{")
    told = node.run(node.file("a", "1"))
    assert "manifest.json is damaged" in told["msg"]
    assert not (node.root / "a").exists()


def test_a_live_file_is_no_input_of_the_unit_that_mounts_it(node: Node) -> None:
    unit = node.file("quadlets/x.container", f"Label=@INPUTS@\nVolume={node.root}/etc:/etc:ro\n")
    for content, live, changed in (("1", True, 2), ("2", True, 1), ("2", False, 1), ("3", False, 2)):
        told = node.run(dict(unit), node.file("etc/rules.yml", content, live=live))
        assert len(told["changed_files"]) == changed, content


class Checked:
    """A node with the image of a program that judges `etc/app`; podman runs it."""

    def __init__(self, node: Node, verdict: str) -> None:
        (node.root / "storage").mkdir()
        self.node = node
        # The last but one word before the image is the mount; what the program would see is kept for the test.
        look = f"""case "$1" in
  image) exit 0;;
  run) while [ "$1" != --volume ]; do shift; done
       /bin/cp -r "${{2%%:*}}" {node.root}/seen
       {verdict};;
esac"""
        program(node.programs, "podman", look)

    def run(self, content: str = "a: 1\n", *, user: int | None = None, **more: Any) -> dict[str, Any]:
        check: dict[str, Any] = {"reference": "r/app@sha256:1", "folder": f"{self.node.root}/etc/app", "at": "/etc/app"}
        check["argv"] = ["apptool", "check", "/etc/app/app.yml"]
        check |= {"user": user} if user else {}
        files = [self.node.file("etc/app/app.yml", content), self.node.file("etc/app/rules/a.yml", "r")]
        return self.node.run(*files, self.node.file("etc/other", "o"), checks=[check], **more)


def test_a_program_of_the_image_sees_the_files_of_its_folder_before_they_are_installed(node: Node) -> None:
    told = Checked(node, "exit 0").run()
    assert told["checked"] == [f"{node.root}/etc/app"]
    assert sorted(str(path.relative_to(node.root / "seen")) for path in (node.root / "seen").rglob("*.yml")) == [
        "app.yml",
        "rules/a.yml",
    ]
    run = next(call for call in calls(node.programs, "podman") if call[1] == "run")
    assert run[run.index("--entrypoint") + 1] == "apptool"
    assert run[-3:] == ["r/app@sha256:1", "check", "/etc/app/app.yml"]
    assert {"--network=none", "--pull=never", "--read-only"} <= set(run)


def test_what_the_program_refuses_is_not_installed(node: Node) -> None:
    told = Checked(node, "echo unknown field >&2; exit 1").run()
    assert told["failed"] is True
    assert "nothing was installed" in told["msg"]
    assert "apptool check /etc/app/app.yml refuses" in told["msg"]
    assert "unknown field" in told["msg"]
    assert not (node.root / "etc").exists()


@pytest.mark.parametrize(("user", "words"), [(None, []), (101, ["--user", "101:101"])])
def test_the_program_runs_as_the_user_that_will_read_the_files(node: Node, user: int | None, words: list[str]) -> None:
    Checked(node, "exit 0").run(user=user)
    run = next(call for call in calls(node.programs, "podman") if call[1] == "run")
    assert run[run.index("apptool") + 1 : run.index("--volume")] == words


def test_files_that_did_not_change_are_not_judged_again(node: Node) -> None:
    checked = Checked(node, "exit 0")
    checked.run()
    before = len(calls(node.programs, "podman"))
    assert checked.run()["checked"] == []
    assert len(calls(node.programs, "podman")) == before


def test_without_the_image_nothing_is_judged_and_nothing_claimed(node: Node) -> None:
    checked = Checked(node, "exit 0")
    node.podman({"image exists": (1, "")})
    told = checked.run()
    assert (told["checked"], told["changed"]) == ([], True)


def test_a_program_that_hangs_is_a_refusal(node: Node) -> None:
    node.apply.CHECK_LIMIT_S = 0.5
    told = Checked(node, "exec /bin/sleep 30").run()
    assert "did not end within 0.5 s" in told["msg"]
    assert not (node.root / "etc").exists()
