"""The role's variables read once, preflight by the manifest of what will be there, and rsync's command lines."""

from __future__ import annotations

import io
import shlex
from pathlib import Path
from typing import Any

import pytest

from tests.unit.factories import changed, ids, instance, judged, snapshot, variables
from tests.unit.factories import model as seen
from tests.unit.model_folders import SHARDS, model
from vllm_node import transfer
from vllm_node.models import manifest as manifests
from vllm_node.models.store import StoreError, wanted
from vllm_node.models.store import fingerprint as model_fingerprint
from vllm_node.preflight import wanted_from
from vllm_node.transfer import Reach


@pytest.fixture
def entry(tmp_path: Path) -> dict[str, Any]:
    folder = model(tmp_path / "models/chat")
    manifests.write(manifests.make(folder), tmp_path / "models/chat.json")
    return {"name": "chat", "source": "control", "path": str(folder), "manifest": str(tmp_path / "models/chat.json")}


def test_where_models_lie(entry: dict[str, Any], tmp_path: Path) -> None:
    entries = [
        entry,
        {"name": "chat2", "source": "path", "path": "/nfs/models/chat2/"},
        {"name": "chat", "source": "bundle", "path": str(tmp_path)},
    ]
    for number, (folder, tree, delivered, mark) in enumerate(
        [
            (entry["path"], "/big/chat", True, "/big/.chat.json"),
            ("/nfs/models/chat2", "/nfs/models/chat2", False, "/state/models/chat2.json"),
            (entry["path"], "/big/chat", True, "/big/.chat.json"),
        ]
    ):
        (found,) = wanted({"model_store_models": [entries[number]], "model_store_dir": "/big"})
        assert (found.folder, found.tree, found.delivered, found.mark("/state")) == (folder, tree, delivered, mark)
    assert wanted({}) == []


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"name": "a/b"}, "the name becomes a folder"),
    ({"name": ".."}, "the name becomes a folder"),
    ({"name": "chat.incoming"}, "the name becomes a folder"),
    ({"source": "hub"}, "source is 'hub'; it is one of bundle, path, control"),
    ({"path": "models/chat"}, "path is 'models/chat'; give an absolute one"),
    ({"manifest": None}, "it has no manifest"),
    ({"manifest": "/nowhere.json"}, "the manifest /nowhere.json cannot be used"),
    ({"source": "bundle", "path": "/nowhere", "manifest": None}, "/nowhere/models/chat.json cannot be used"),
]


@pytest.mark.parametrize(("change", "why"), WRONG, ids=[why[:30] for _, why in WRONG])
def test_what_cannot_be_right_is_told(entry: dict[str, Any], change: dict[str, Any], why: str) -> None:
    with pytest.raises(StoreError, match=r"^model ") as refused:
        wanted({"model_store_models": [{**entry, **change}]})
    assert why in str(refused.value)


def test_everything_that_is_wrong_is_told_at_once(entry: dict[str, Any]) -> None:
    with pytest.raises(StoreError) as refused:
        wanted({"model_store_models": [entry, entry, {**entry, "name": ""}, "x"]})
    assert len(str(refused.value).splitlines()) == 3
    assert "model chat is there twice" in str(refused.value)


def test_the_store_has_an_absolute_path(entry: dict[str, Any]) -> None:
    with pytest.raises(StoreError, match="model_store_dir is 'models'; give an absolute path"):
        wanted({"model_store_models": [entry], "model_store_dir": "models"})


def test_a_model_that_its_manifest_calls_incomplete_is_not_delivered(entry: dict[str, Any]) -> None:
    (Path(entry["path"]) / SHARDS[0]).unlink()
    manifests.write(manifests.make(Path(entry["path"])), Path(entry["manifest"]))
    with pytest.raises(StoreError, match=f"says that it is not whole: shard {SHARDS[0]} is missing"):
        wanted({"model_store_models": [entry]})


def site(entry: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {**variables(), "vllm_instances": [instance("chat")], "model_store_models": [entry], **more}


def node(**model: Any) -> dict[str, Any]:
    return changed(snapshot(), "models", [{**seen("chat"), **model}])


def test_a_model_that_will_be_brought_may_be_missing_now_or_broken(entry: dict[str, Any]) -> None:
    assert ids(node(exists=False), {**variables(), "vllm_instances": [instance("chat")]}) == {"model.missing": "fail"}
    for there in (node(exists=False, bytes=None), node(problems=["shard x is missing"])):
        assert judged(there, site(entry)) == []


def test_a_model_that_is_served_in_place_has_to_be_there(entry: dict[str, Any]) -> None:
    found = site({**entry, "source": "path", "path": "/srv/models/chat"})
    assert ids(node(exists=False), found) == {"model.missing": "fail"}
    assert judged(node(exists=False), {**found, "model_store_copy": True}) == []


def test_an_instance_that_names_a_part_that_the_model_has_not_is_told(entry: dict[str, Any]) -> None:
    missing = node(exists=False, path="/srv/models/chat/other.gguf")
    assert ids(missing, site(entry)) == {"model.missing": "fail"}
    there = node(exists=False, path=f"/srv/models/chat/{SHARDS[0]}")
    assert judged(there, site(entry)) == []


def test_what_the_manifest_says_is_judged_before_the_model_is_there(entry: dict[str, Any]) -> None:
    folder = Path(entry["path"])
    (folder / "config.json").write_text(
        '{"architectures": ["GptOssForCausalLM"], "auto_map": {"AutoModel": "modeling_x.X"}}'
    )
    for name in ("modeling_x.py", "vocabulary/cl100k_base.tiktoken"):
        (folder / name).write_text("x")
    manifests.write(manifests.make(folder), Path(entry["manifest"]))
    assert ids(node(exists=False), site(entry)) == {"model.own_code": "fail", "model.vocabulary": "fail"}


def test_a_manifest_that_is_missing_stops_the_bring_up(entry: dict[str, Any]) -> None:
    Path(entry["manifest"]).unlink()
    (found,) = judged(node(exists=False), site(entry))
    assert (found.id, found.level) == ("model.delivery", "fail")
    assert entry["manifest"] in found.seen


@pytest.mark.parametrize("value", [None, 3, "x", [3], [{}], {"name": "x"}, [{"name": 1, "source": [], "path": {}}]])
def test_reading_what_is_no_list_of_models_never_raises(value: Any) -> None:
    wanted_from("gpu1", {"model_store_models": value})


SSH = Reach(("ssh", "-o", "ProxyCommand=nc %h %p", "-l", "admin"), "10.0.0.1", ("sudo", "-n", "-u", "root"))


def test_a_copy_from_the_control_host_goes_over_ansibles_connection() -> None:
    words = transfer.command(SSH, "/from", "/to/x", source_on_node=False, bandwidth="100m")
    assert words[:3] == ["env", "LC_ALL=C", "rsync"]
    assert words[-2:] == ["/from/", "10.0.0.1:/to/x/"]
    assert words[words.index("-e") + 1] == shlex.join(SSH.ssh or ())
    assert "--rsync-path=sudo -n -u root rsync" in words
    assert "--bwlimit=100m" in words
    assert {"--files-from=-", "--from0", "--inplace", "--copy-links", "--times"} <= set(words)


def test_an_address_with_colons_is_put_into_brackets() -> None:
    words = transfer.command(Reach(("ssh",), "fd00::1"), "/from", "/to", source_on_node=False)
    assert words[-1] == "[fd00::1]:/to/"


def test_a_copy_of_a_path_runs_on_the_node() -> None:
    words = transfer.command(SSH, "/nfs/a b", "/to", source_on_node=True)
    assert words[: len(SSH.ssh or ()) + 1] == [*(SSH.ssh or ()), "10.0.0.1"]
    remote = shlex.split(words[-1])
    assert remote[:6] == ["sudo", "-n", "-u", "root", "env", "LC_ALL=C"]
    assert remote[-2:] == ["/nfs/a b/", "/to/"]


def test_progress_is_read_out_of_what_rsync_draws() -> None:
    drawn = (
        b"          1,000   1%  120.00kB/s    0:00:01  \r         65,536  50%    1.00MB/s    0:00:00 (xfr#1, to-chk=1/3)"
        b"\r        131,072 100%    1.00MB/s    0:00:00 (xfr#2, to-chk=0/3)\n\nLiteral data: 131,072 bytes\nMatched data: 0 bytes\n"
    )
    steps: list[int] = []
    text = transfer._follow(io.BytesIO(drawn), steps.append)
    assert steps == [1000, 64536, 65536]
    assert "Literal data: 131,072 bytes" in text


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("echo 'Permission denied (publickey).' >&2; exit 255", r"code 255: Permission denied \(publickey\)."),
        ("echo 'bash: rsync: command not found' >&2; exit 127", "rsync is missing there"),
        ("kill -9 $$", "ended by signal 9"),
        ("exit 30", "code 30: it said nothing"),
    ],
)
def test_a_copy_that_fails_is_told_in_rsyncs_own_words(body: str, said: str) -> None:
    with pytest.raises(transfer.TransferError, match=said):
        transfer.run(["sh", "-c", body], ["a"], lambda _: None)


def test_a_program_that_is_missing_is_told() -> None:
    with pytest.raises(transfer.TransferError, match="/nowhere/rsync cannot be started: No such file"):
        transfer.run(["/nowhere/rsync"], ["a"], lambda _: None)


def test_a_unit_learns_of_another_model_by_its_fingerprint(entry: dict[str, Any]) -> None:
    before = model_fingerprint("/srv/models/chat", [entry])
    assert len(before) == 24
    assert model_fingerprint(f"/srv/models/chat/{SHARDS[0]}", [entry]) == before
    assert model_fingerprint("/srv/models/chat2", [entry]) == ""
    assert model_fingerprint("/srv/models/chat", [entry], "/big") == ""
    assert model_fingerprint("/big/chat/", [entry], "/big") == before
    assert model_fingerprint(entry["path"], [{**entry, "source": "path"}]) == before
    assert model_fingerprint("/srv/models/chat", [{**entry, "source": "path"}], copy=True) == before
    assert model_fingerprint("/srv/models/chat", [{**entry, "manifest": "/nowhere"}]) == ""
    assert model_fingerprint("/srv/models/chat", None) == ""
    (Path(entry["path"]) / "tokenizer.json").write_text("[]")
    manifests.write(manifests.make(Path(entry["path"])), Path(entry["manifest"]))
    assert model_fingerprint("/srv/models/chat", [entry]) not in ("", before)
