"""What installing leaves in the history of a node, and installing a generation of it again, byte for byte."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.unit.role_code import calls, load, on_path, run_module, shared_code
from tests.unit.test_node_apply import Node

generations = shared_code("node_generations")
words = shared_code("generation_changes")
UNIT = "Image=r/x@sha256:{digest}\nLabel=io.vllm-node.inputs=@INPUTS@\nExec=serve --seqs {seqs}\nVolume={root}/etc:/etc:ro\n"


class Site:
    """A node with a unit and a file that it mounts; each run has an id of its own."""

    def __init__(self, node: Node) -> None:
        self.node, self.store, self.runs = node, generations.Store(str(node.state)), 0
        self.history = load("roles/quadlet/library/node_generation.py")

    def up(self, *, digest: str = "1", seqs: int = 1, text: str = "a", more: tuple[str, ...] = (), **args: Any) -> dict[str, Any]:
        self.runs += 1
        unit = UNIT.format(digest=digest * 64, seqs=seqs, root=self.node.root)
        files = [self.node.file("quadlets/x.container", unit), self.node.file("etc/a", text)]
        files += [self.node.file(f"quadlets/{name}.container", "Image=r/y@sha256:2\n") for name in more]
        files += [self.node.file("keys/crt", f"for {one['content']}") for one in args.get("secret_files", ())]
        units = [{"unit": "x.service", "ready": {"kind": "http", "url": "u"}}]
        return self.node.run(*files, run={"id": f"r{self.runs}", "verb": "up"}, units=units, **{"keep": 5, **args})

    def ready(self) -> None:
        self.store.ready()

    def back(self, number: int, **args: Any) -> dict[str, Any]:
        self.runs += 1
        told = {"id": f"r{self.runs}", "verb": "rollback", "back_to": number, "instead_of": None}
        units = self.store.read(number)["units"]
        return self.node.run(scope=None, generation=number, run=told, units=units, keep=5, **args)

    def ask(self, action: str, **args: Any) -> dict[str, Any]:
        return run_module(self.history, self.node.capsys, state_dir=str(self.node.state), action=action, **args)

    def files(self) -> dict[str, tuple[bytes, int]]:
        places = [path for part in ("quadlets", "etc") for path in (self.node.root / part).rglob("*") if path.is_file()]
        return {str(path): (path.read_bytes(), path.stat().st_mode) for path in places}


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Site:
    on_path(monkeypatch, tmp_path / "bin")
    monkeypatch.setattr("os.fsync", lambda _: None)
    return Site(Node(load("roles/quadlet/library/node_apply.py"), tmp_path, capsys))


def test_a_change_is_a_generation_and_a_second_run_is_none(site: Site) -> None:
    assert site.up()["generation"] == 1
    before = sorted(path.name for path in site.node.state.rglob("*"))
    assert "generation" not in site.up()
    assert sorted(path.name for path in site.node.state.rglob("*")) == before
    told = site.store.read(1)
    assert (told["outcome"], told["verb"], told["images"]) == ("applied", "up", {"x": "r/x@sha256:" + "1" * 64})


def test_check_mode_makes_none(site: Site) -> None:
    site.up(check=True)
    assert not site.node.state.exists()


def test_a_refused_unit_makes_none(site: Site) -> None:
    site.up()
    assert site.node.run(site.node.file("quadlets/x.container", "Bogus=1"))["failed"]
    assert site.store.numbers() == [1]


def test_going_back_installs_the_same_bytes_and_takes_away_what_came_later(site: Site) -> None:
    site.up()
    site.ready()
    before = site.files()
    site.up(digest="2", text="b", more=("y",))
    assert site.files() != before
    told = site.back(1)
    assert site.files() == before
    assert told["removed_files"] == [str(site.node.root / "quadlets/y.container")]
    assert ["systemctl", "stop", "y.service"] in calls(site.node.programs, "systemctl")
    assert site.store.read(3)["content"] == site.store.read(1)["content"]
    assert site.back(1)["changed"] is False


def test_going_back_brings_what_was_taken_away(site: Site) -> None:
    site.up(more=("y",))
    site.ready()
    site.up()
    assert site.back(1)["changed_files"] == [str(site.node.root / "quadlets/y.container")]


def test_what_was_edited_by_hand_is_put_back_as_well(site: Site) -> None:
    site.up()
    site.ready()
    before = site.files()
    (site.node.root / "etc/a").write_text("edited")
    (site.node.root / "quadlets/x.container").chmod(0o600)
    # Not everybody may read it now, and still it is no secret.
    site.back(1)
    assert site.files() == before


def test_a_secret_file_stays_what_it_is(site: Site) -> None:
    key = site.node.file("keys/key", "one", mode="0600")
    site.up(secret_files=[key])
    site.ready()
    site.up(digest="2", secret_files=[{**key, "content": "two"}])
    told = site.ask("choose")
    assert (told["target"]["number"], told["secrets"]) == (1, [str(site.node.root / f"keys/{name}") for name in ("crt", "key")])
    assert site.back(1)["removed_files"] == []
    assert (site.node.root / "keys/key").read_text() == "two"
    # So does the certificate beside it.
    assert (site.node.root / "keys/crt").read_text() == "for two"


def test_another_scope_goes_back_too_and_packages_do_not(site: Site) -> None:
    host = site.node.file("host", "1")
    site.node.run(host, scope="host", run={"id": "r1"})
    site.node.run(site.node.file("repo", "1"), scope="packages", run={"id": "r1"})
    site.up()
    site.ready()
    site.node.run({**host, "content": "2"}, scope="host", run={"id": "r9"})
    site.node.run(site.node.file("repo", "2"), scope="packages", run={"id": "r9"})
    assert site.back(1)["changed_files"] == [str(site.node.root / "host")]
    assert (site.node.root / "repo").read_text() == "2"
    assert site.node.manifest["files"][str(site.node.root / "host")]["scope"] == "host"


def test_a_damaged_generation_is_refused_before_anything_is_changed(site: Site) -> None:
    site.up()
    site.ready()
    site.up(digest="2")
    site.ready()
    before = site.files()
    kept = site.node.state / "generations/content" / site.store.read(1)["content"] / str(site.node.root).lstrip("/")
    (kept / "etc/a").write_text("evil")
    for told in (site.back(1), site.ask("choose"), site.ask("choose", to=1)):
        assert told["failed"]
        assert "generation 1 is damaged" in told["msg"]
    assert site.files() == before


def test_an_operator_is_told_what_becomes_different(site: Site) -> None:
    site.up()
    site.ready()
    site.up(digest="2", seqs=8)
    told = site.ask("choose")
    assert told["target"]["units"] == [{"unit": "x.service", "ready": {"kind": "http", "url": "u"}}]
    assert told["changes"] == ["x: image sha256:222222222222 → sha256:111111111111", "x: --seqs 8 → 1"]
    assert "files" not in told["target"]
    assert "files" not in told["generations"][0]


def test_giving_up_notes_why_and_names_what_was_ready(site: Site) -> None:
    site.up()
    site.ready()
    site.up(digest="2")
    told = site.ask("give_up", run="r2", reason="it dies")
    assert told["target"]["number"] == 1
    assert [(one["outcome"], one["reason"]) for one in told["generations"]] == [("ready", None), ("failed", "it dies")]
    assert site.ask("give_up", run="r9", _ansible_check_mode=True)["generations"] == told["generations"]


def test_giving_up_what_never_ran_has_nothing_to_go_back_to(site: Site) -> None:
    told = site.ask("give_up", run="r1", reason="no")
    assert (told["target"], told["generations"]) == (None, [])
    site.up()
    told = site.ask("give_up", run="r1", reason="no")
    assert told["target"] is None
    assert "no earlier generation was ever ready" in told["why"]


def test_what_was_changed_by_hand_is_told(site: Site) -> None:
    site.up()
    assert site.ask("list")["differs"] == []
    (site.node.root / "etc/a").write_text("edited")
    assert site.ask("list")["differs"] == [str(site.node.root / "etc/a")]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("Exec=serve --a 1 --b", "Exec=serve --a 2 --c x y", ["x: --a 1 → 2", "x: --b is gone", "x: --c x y is new"]),
        ("Exec=serve --api-key one", "Exec=serve --api-key two", ["x: --api-key changed"]),
        ("Exec=/models/a --x", "Exec=/models/b --x", ["x: first words /models/a → /models/b"]),
        ("Environment=A=1\nMemoryMax=1", "Environment=A=2\nMemoryMax=1\nPidsLimit=0", ["x: Environment, PidsLimit"]),
        ("Label=io.vllm-node.inputs=1", "Label=io.vllm-node.inputs=2", ["x: what it mounts"]),
        ("Image=r@sha256:" + "a" * 64, "Image=r:tag", ["x: image sha256:aaaaaaaaaaaa → r:tag"]),
    ],
)
def test_changes_of_a_unit_are_told_in_words(old: str, new: str, said: list[str]) -> None:
    assert words.unit_changes("x", old, new) == said


def test_files_are_told_by_their_names_and_not_all_of_many() -> None:
    new = {f"/etc/{number}": "1" for number in range(7)}
    before: dict[str, Any] = {"secrets": {}, "images": {}}
    assert words.changes(before, before, {}, new) == ["files: /etc/0, /etc/1, /etc/2, /etc/3 and 3 more"]
    assert words.changes(before, before, new, new) == ["nothing but what had been changed by hand"]
    units = {"/u/x.container": "Image=r@sha256:1"}
    assert words.changes(before, {**before, "images": {"x": "r@sha256:1"}}, {}, units) == ["x: new, sha256:1"]
    assert words.changes(before, before, units, {}) == ["x: gone"]


def test_an_image_goes_with_the_last_generation_that_names_it(site: Site) -> None:
    manifest = shared_code("node_manifest").Manifest.load(str(site.node.state))
    images = {digest: "r/x@sha256:" + digest * 64 for digest in "1234"}
    for digest in "124":
        manifest.add_image(images[digest], "x")
    for digest, text in (("1", "a"), ("2", "a"), ("1", "b"), ("3", "a"), ("4", "a")):
        site.up(digest=digest, text=text, keep=2)
        site.ready()
    removed = [call for call in calls(site.node.programs, "podman") if call[1] == "rmi"]
    # Both generations with the first are gone by now; the third was not brought by the toolkit.
    assert removed == [["podman", "rmi", images["2"]], ["podman", "rmi", images["1"]]]
    assert list(site.node.manifest["images"]) == [images["4"]]


def test_an_image_that_is_in_use_stays_on_record(site: Site) -> None:
    manifest = shared_code("node_manifest").Manifest.load(str(site.node.state))
    manifest.add_image("r/x@sha256:" + "1" * 64, "x")
    site.node.podman({"rmi": (2, "")})
    for digest in "123":
        assert "failed" not in site.up(digest=digest, keep=2)
        site.ready()
    assert len(site.node.manifest["images"]) == 1


def test_files_of_others_are_never_kept(site: Site) -> None:
    site.up()
    (site.node.root / "etc/theirs").write_text("theirs")
    site.up(text="b")
    assert not any("theirs" in path for path in site.store.read(2)["files"])
    assert (site.node.root / "etc/theirs").exists()
