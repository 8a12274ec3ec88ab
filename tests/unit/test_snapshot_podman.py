"""What podman tells, and when it is not asked at all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.unit.node_code import utils

podman = utils("snapshot_podman")
host_code = utils("snapshot_host")

INFO = {
    "host": {
        "cgroupManager": "systemd",
        "databaseBackend": "sqlite",
        "networkBackend": "netavark",
        "ociRuntime": {"name": "crun"},
    },
    "store": {"graphRoot": "/data/containers", "graphDriverName": "overlay"},
    "version": {"Version": "5.4.2"},
}
CONTAINER = {
    "Id": "c1",
    "Names": ["vllm-a"],
    "Image": "r/x@sha256:1",
    "ImageID": "i1",
    "State": "running",
    "Labels": {"a": "b"},
}
IMAGE = {"Id": "i1", "RepoDigests": ["r/x@sha256:1"], "Names": ["r/x:v1"], "Size": 9}
ANSWERS = {
    "info": json.dumps(INFO),
    "ps": json.dumps([CONTAINER]),
    "images": json.dumps([IMAGE, {**IMAGE, "RepoDigests": ["r/x@sha256:2"], "Names": None}]),
    "volume": json.dumps([{"Name": "data", "Labels": None}]),
    "network": json.dumps([{"name": "podman", "driver": "bridge"}]),
    "secret": "b\na\n",
}


Host: Any = host_code.Host


class FakeHost(Host):  # type: ignore[misc]
    """A host whose podman gives prepared answers and counts the questions."""

    def __init__(self, root: Path, answers: dict[str, str], is_root: bool = True) -> None:
        super().__init__(root=str(root))
        self.answers = answers
        self.is_root = is_root
        self.asked: list[str] = []
        program = root / "usr/bin/podman"
        program.parent.mkdir(parents=True)
        program.write_text("")
        program.chmod(0o755)

    def run(self, *argv: str) -> Any:
        self.asked.append(argv[1])
        if argv[1] == "--version":
            return host_code.Answer(0, "podman version 5.4.2\n", "", None)
        if argv[1] in self.answers:
            return host_code.Answer(0, self.answers[argv[1]], "", None)
        return host_code.Answer(125, "", "Error: wedged", None)


def used(root: Path, store: str = "var/lib/containers/storage") -> None:
    (root / store).mkdir(parents=True)
    (root / store / "db.sql").write_text("")


def test_everything_is_asked_where_podman_was_used(tmp_path: Path) -> None:
    used(tmp_path)
    found = podman.probe(FakeHost(tmp_path, ANSWERS))
    assert found["podman"]["version"] == "5.4.2"
    assert found["podman"]["database_backend"] == "sqlite"
    assert found["podman"]["graph_root"] == "/data/containers"
    assert found["containers"] == [
        {
            "id": "c1",
            "name": "vllm-a",
            "image": "r/x@sha256:1",
            "image_id": "i1",
            "state": "running",
            "labels": {"a": "b"},
        }
    ]
    assert found["images"] == [
        {"id": "i1", "digests": ["r/x@sha256:1", "r/x@sha256:2"], "names": ["r/x:v1"], "size_bytes": 9}
    ]
    assert found["volumes"] == [{"name": "data", "labels": {}}]
    assert found["networks"] == [{"name": "podman", "driver": "bridge"}]
    assert found["secrets"] == ["a", "b"]


def test_a_podman_that_was_never_used_is_not_asked(tmp_path: Path) -> None:
    host = FakeHost(tmp_path, ANSWERS)
    found = podman.probe(host)
    assert host.asked == ["--version"]
    assert found["podman"]["version"] == "5.4.2"
    assert found["podman"]["storage_used"] is False
    assert [found[name] for name in podman.HELD] == [[], [], [], [], []]


def test_without_root_the_systems_containers_are_unseen(tmp_path: Path) -> None:
    used(tmp_path)
    host = FakeHost(tmp_path, ANSWERS, is_root=False)
    found = podman.probe(host)
    assert host.asked == ["--version"]
    assert [found[name] for name in podman.HELD] == [None] * 5
    assert {entry["what"] for entry in host.unseen_list()} == set(podman.HELD)


def test_a_question_that_fails_costs_only_its_own_answer(tmp_path: Path) -> None:
    used(tmp_path)
    host = FakeHost(tmp_path, {**ANSWERS, "volume": "no json"} | {"ps": "{}"})
    del host.answers["network"]
    found = podman.probe(host)
    assert found["networks"] is None
    assert found["volumes"] is None
    assert found["secrets"] == ["a", "b"]
    unseen = {entry["what"]: entry["why"] for entry in host.unseen_list()}
    assert "wedged" in unseen["networks"]


def test_info_that_fails_leaves_what_is_known_from_files(tmp_path: Path) -> None:
    used(tmp_path)
    (tmp_path / "var/lib/containers/storage/defaultNetworkBackend").write_text("netavark")
    found = podman.probe(FakeHost(tmp_path, {key: value for key, value in ANSWERS.items() if key != "info"}))
    assert found["podman"]["version"] == "5.4.2"
    assert found["podman"]["network_backend"] == "netavark"
    assert found["podman"]["database_backend"] == "sqlite"


def test_the_old_database_is_recognised_without_podman(tmp_path: Path) -> None:
    (tmp_path / "var/lib/containers/storage/libpod").mkdir(parents=True)
    (tmp_path / "var/lib/containers/storage/libpod/bolt_state.db").write_text("")
    host = FakeHost(tmp_path, {}, is_root=False)
    assert podman.probe(host)["podman"]["database_backend"] == "boltdb"


@pytest.mark.parametrize(
    ("there", "found"),
    [
        (["/usr/libexec/podman/catatonit"], "/usr/libexec/podman/catatonit"),
        (["/usr/bin/catatonit"], "/usr/bin/catatonit"),
        (["/usr/bin/catatonit", "/usr/lib/podman/catatonit"], "/usr/lib/podman/catatonit"),
        ([], None),
    ],
)
def test_the_init_program_is_found_where_podman_looks(tmp_path: Path, there: list[str], found: str | None) -> None:
    host = FakeHost(tmp_path, ANSWERS)
    for path in there:
        program = tmp_path / path.lstrip("/")
        program.parent.mkdir(parents=True, exist_ok=True)
        program.touch(mode=0o755)
    assert podman.probe(host)["podman"]["init"] == found


def test_no_podman(tmp_path: Path) -> None:
    found = podman.probe(host_code.Host(root=str(tmp_path)))
    assert found["podman"] is None
    assert found["images"] == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, "/var/lib/containers/storage"),
        ('[storage]\ndriver = "overlay"\n# graphroot = "/no"\n', "/var/lib/containers/storage"),
        ('[storage]\n  graphroot = "/data/containers"\n', "/data/containers"),
    ],
)
def test_graph_root(text: str | None, expected: str) -> None:
    assert podman.graph_root(text) == expected
