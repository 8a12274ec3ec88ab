"""Where a run comes from, who set each flag, and that nothing of the site is left when that is asked for."""

from __future__ import annotations

import importlib.metadata
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.server_answers import WINDOW, answers
from vllm_node.bench import flags, server
from vllm_node.bench.provenance import Facts, collect, digest
from vllm_node.bench.redaction import Redactor, redact
from vllm_node.load.definitions import DEFINITIONS

DIGEST = "sha256:" + "a" * 64
SNAPSHOT: dict[str, Any] = {
    "schema": 1,
    "taken_at": 1800000000.0,
    "hostname": "gpu1.site.example",
    "os": {"id": "rhel", "id_like": ["fedora"], "version_id": "9.6", "name": "Red Hat Enterprise Linux 9.6"},
    "kernel": {"release": "5.14.0-570.el9.x86_64", "arch": "x86_64"},
    "podman": {"version": "5.4.2"},
    "cpu": {"count": 64},
    "memory": {"total_bytes": 1 << 39},
    "gpu": {
        "driver": {"loaded": "570.124.06", "smi": "570.124.06", "cuda": "12.8"},
        "devices": [
            {"index": 0, "name": "NVIDIA H200", "uuid": "GPU-6fe2cbf4-0d4f-6a2b-8a5e-3e8f9b1c2d3e", "pci": "3B:00.0"}
        ],
        "error": None,
    },
    "unseen": [{"what": "firewall.ruleset_sha256", "why": "only root sees it"}],
}
INSTANCE = {
    "name": "tiny",
    "port": 8000,
    "model": "/srv/models/tiny",
    "gpus": ["0"],
    "args": {"max-num-seqs": 16, "enable_prefix_caching": False, "uvicorn-log-level": "info", "api-key": "hush-hush"},
}
COMMAND = [
    *("/models/tiny", "--served-model-name", "tiny", "--host", "127.0.0.1", "--port", "8000"),
    *("--shutdown-timeout", "60", "--disable-uvicorn-access-log", "--uvicorn-log-level", "info"),
    *("--max-num-seqs", "16", "--no-enable-prefix-caching", "--api-key", "hush-hush"),
]
OBSERVED: dict[str, Any] = {
    "image": {"name": f"reg.example:5000/vllm@{DIGEST}", "id": "b" * 64, "digest": DIGEST, "digests": [DIGEST]},
    "command": COMMAND,
    "started_at": "2026-11-30T02:00:00Z",
    "version": "0.32.0",
    "max_model_len": 2048,
    "cache_config": {"num_gpu_blocks": "1000"},
    "model": {
        "path": "/srv/models/tiny",
        "files": {"config.json": 700, "model.safetensors": 1 << 20},
        "config_sha256": "c" * 64,
        "facts": {"vocab_size": 32000},
    },
    "unseen": [],
}
LOCK = {"vllm": {"repository": "reg.example:5000/vllm", "tag": "v0.32.0", "digest": DIGEST}}
FULL = Facts(
    snapshot=SNAPSHOT,
    instance=INSTANCE,
    lock=LOCK,
    observed=OBSERVED,
    slo={"ttft_p95_s": 1.0},
    workload={"name": "chat"},
    seed=1,
    definitions=DEFINITIONS,
    selfcheck=[{"valid": True}],
    metrics_schema=[{"job": "vllm", "instance": "tiny", "state": "ok", "metrics": {"vllm:x": {"type": "gauge"}}}],
)


def changed(**changes: Any) -> tuple[dict[str, Any], dict[str, str]]:
    found, unseen = collect(Facts(**{**FULL.__dict__, **changes}))
    return found, {one["what"]: one["why"] for one in unseen}


def origins(found: dict[str, Any]) -> dict[str, str]:
    return {one["flag"]: one["origin"] for one in found["vllm"]["flags"]}


def test_everything_is_there_and_only_what_nobody_can_see_is_missing() -> None:
    found, unseen = changed()
    assert set(unseen) == {"other flags", "snapshot: firewall.ruleset_sha256"}
    node = found["node"]
    assert (node["os"], node["kernel"], node["podman"]) == (
        "Red Hat Enterprise Linux 9.6",
        "5.14.0-570.el9.x86_64",
        "5.4.2",
    )
    assert (node["driver"], node["cpus"], node["memory_bytes"]) == ("570.124.06", 64, 1 << 39)
    assert node["gpus"][0]["name"] == "NVIDIA H200"
    assert found["images"]["locked"] == {"vllm": f"reg.example:5000/vllm@{DIGEST}"}
    assert found["images"]["running_is_locked"] is True
    assert (found["vllm"]["version"], found["vllm"]["max_model_len"]) == ("0.32.0", 2048)
    assert found["kv_cache"] == {"num_gpu_blocks": "1000"}
    assert found["metrics_schema"]["endpoints"][0]["metrics"] == {"vllm:x": "gauge"}
    json.dumps(found, allow_nan=False)


def test_each_flag_has_its_origin_and_a_secret_is_never_kept() -> None:
    found, _ = changed()
    assert origins(found) == {
        "--served-model-name": "role default",
        "--host": "role default",
        "--port": "role default",
        "--shutdown-timeout": "role default",
        "--disable-uvicorn-access-log": "role default",
        # The inventory overrides the role.
        "--uvicorn-log-level": "inventory",
        "--max-num-seqs": "inventory",
        "--no-enable-prefix-caching": "inventory",
        "--api-key": "inventory",
    }
    assert found["vllm"]["not_in_effect"] == []
    assert found["vllm"]["flags_how"].startswith("measured")
    assert "hush" not in json.dumps(found)


def test_what_runs_and_what_is_wanted_are_told_apart() -> None:
    command = [*COMMAND[: COMMAND.index("--max-num-seqs")], "--max_num_seqs=8", "-tp", "2"]
    found, _ = changed(observed={**OBSERVED, "command": command})
    assert origins(found)["--max-num-seqs"] == "elsewhere"
    assert origins(found)["-tp"] == "elsewhere"
    missing = [one["flag"] for one in found["vllm"]["not_in_effect"]]
    assert missing == ["--max-num-seqs", "--no-enable-prefix-caching", "--api-key"]
    assert "hush" not in json.dumps(found)


def test_without_a_command_line_the_flags_are_inferred() -> None:
    found, unseen = changed(observed={**OBSERVED, "command": None, "unseen": [{"what": "command", "why": "no podman"}]})
    assert found["vllm"]["flags_how"].startswith("inferred")
    assert origins(found)["--max-num-seqs"] == "inventory"
    assert unseen["the command line that runs"] == "no podman"


def test_the_flags_of_a_profile_are_the_profiles() -> None:
    profiled = {**INSTANCE, "profile": "batch", "gpus": []}
    values, told = flags.role_args(profiled, {"vllm": {"tag": "v0.33.0"}})
    assert (values["stream-interval"], told["stream-interval"]) == (10, "profile batch")
    found = flags.effective(["--stream-interval", "10", "--host", "127.0.0.1"], inventory={}, role=values, origins=told)
    assert [(one["flag"], one["origin"]) for one in found["flags"]] == [
        ("--stream-interval", "profile batch"),
        ("--host", "role default"),
    ]


def test_another_image_than_the_locked_one_is_told() -> None:
    other = {**OBSERVED["image"], "digest": "sha256:" + "d" * 64, "digests": []}
    assert changed(observed={**OBSERVED, "image": other})[0]["images"]["running_is_locked"] is False
    # Pulled by the digest of a list of platforms.
    listed = {**other, "digests": [DIGEST]}
    assert changed(observed={**OBSERVED, "image": listed})[0]["images"]["running_is_locked"] is True
    assert changed(lock=None)[0]["images"]["running_is_locked"] is None


def test_a_model_is_known_by_its_manifest_or_else_by_inference() -> None:
    inferred = changed()[0]["model"]["identity"]
    assert (inferred["how"], inferred["files"], inferred["bytes"]) == ("inferred", 2, 700 + (1 << 20))
    grown = {**OBSERVED["model"], "files": {**OBSERVED["model"]["files"], "config.json": 701}}
    assert changed(observed={**OBSERVED, "model": grown})[0]["model"]["identity"]["sha256"] != inferred["sha256"]
    known = changed(manifest_sha256="e" * 64)[0]["model"]["identity"]
    assert known == {"sha256": "e" * 64, "of": "manifest", "how": "measured"}


def test_what_nobody_told_is_listed_with_the_reason() -> None:
    found, unseen = collect(Facts())
    told = {one["what"] for one in unseen}
    assert {"node", "image lock", "the image that runs", "vLLM's version", "model identity", "slo", "seed"} <= told
    assert all(one["why"] for one in unseen)
    assert found["node"] is None
    assert found["vllm"]["version"] is None


def test_no_gpu_list_is_not_an_empty_one() -> None:
    gpu: dict[str, Any] = {"driver": {}, "devices": None, "error": "nvidia-smi is not installed"}
    found, unseen = changed(snapshot={**SNAPSHOT, "gpu": gpu})
    assert found["node"]["gpus"] is None
    assert unseen["gpus"] == unseen["driver"] == "nvidia-smi is not installed"


def test_the_digest_does_not_depend_on_the_order_of_keys_and_does_on_everything_else() -> None:
    again = json.loads(json.dumps(SNAPSHOT), object_pairs_hook=lambda pairs: dict(reversed(pairs)))
    assert list(again) != list(SNAPSHOT)
    assert digest(again) == digest(SNAPSHOT)
    assert digest({**SNAPSHOT, "hostname": "gpu2"}) != digest(SNAPSHOT)


def test_the_toolkit_is_told_with_its_commit_and_whether_it_was_modified(tmp_path: Path) -> None:
    assert collect(Facts(root=tmp_path))[0]["toolkit"] == {
        "version": importlib.metadata.version("vllm-node"),
        "commit": None,
        "modified": None,
    }

    def git(*words: str) -> str:
        who = ("-c", "user.name=t", "-c", "user.email=t@localhost", "-c", "commit.gpgsign=false")
        done = subprocess.run(["git", "-C", tmp_path, *who, *words], capture_output=True, text=True, check=True)
        return done.stdout.strip()

    git("init", "-q")
    (tmp_path / "file").write_text("a")
    git("add", "file")
    git("commit", "-qm", "first")
    toolkit = collect(Facts(root=tmp_path))[0]["toolkit"]
    assert (toolkit["commit"], toolkit["modified"]) == (git("rev-parse", "HEAD"), False)
    (tmp_path / "file").write_text("b")
    assert collect(Facts(root=tmp_path))[0]["toolkit"]["modified"] is True


# --- redaction

PLANTED = (
    *("gpu1.site.example", "gpu1", "gpu2", "site.example", "bastion.corp.lan", "reg.corp.lan", "10.20.30.40"),
    *("fd00:1234::99", "fe80::1", "aa:bb:cc:dd:ee:ff", "00-11-22-33-44-55", "6fe2cbf4-0d4f-6a2b-8a5e-3e8f9b1c2d3e"),
    *("SN-48213377", "1324321001234", "alice", "bob", "hunter2", "carol", "/srv/models", "/data/my store", "my store"),
    *("/home/alice", "secret-project", "0123456789abcdef0123456789abcdef", "dave@site.example", "fe80:0:0:1:2:3:4:5"),
    *("0x506b4b0300c0ffee", "ops7", "erin", "rig77", "s3cr", "frank"),
)
SITE: dict[str, Any] = {
    "schema": 1,
    "host": "gpu1.site.example",
    "instance": "tiny",
    "steps": [{"repeats": [{"client": {"plan": {"target": {"url": "https://bob:hunter2@reg.corp.lan:8443/v1"}}}}]}],
    "per_host": {"gpu1": 1, "gpu2": {"10.20.30.40": 2}, "/srv/models/a": 3},
    "provenance": {
        "node": {"hostname": "gpu1", "serial": 1324321001234, "board_serial": "SN-48213377"},
        "machine_id": "0123456789abcdef0123456789abcdef",
        "gpus": ["GPU-6fe2cbf4-0d4f-6a2b-8a5e-3e8f9b1c2d3e", "MIG-6fe2cbf4-0d4f-6a2b-8a5e-3e8f9b1c2d3e"],
        "path": "/data/my store/secret-project",
        "remote_user": "carol",
        "image": f"reg.corp.lan:5000/vllm/vllm-openai@{DIGEST}",
        "flags": [{"flag": "--chat-template", "value": ["/srv/models/tiny/x.jinja"]}, {"flag": "--a=/srv/models/b"}],
    },
    "unobservable": [
        {"what": "metrics", "why": "GPU1 (10.20.30.40, fd00:1234::99, fe80::1%eth0) did not answer on 10.20.30.40:8000"},
        {"what": "mac", "why": "aa:bb:cc:dd:ee:ff and 00-11-22-33-44-55, guid 0x506b4b0300c0ffee"},
        {"what": "user", "why": "alice and carol wrote to dave@site.example; alice@gpu2 in /home/alice/secret-project"},
        {"what": "mount", "why": "10.20.30.40:/srv/models on file:///srv/models/x, ssh://carol@bastion.corp.lan/"},
        {"what": "text", "why": "vllm-gpu1.service at /data/my store/secret-project, ops7 called, ~alice/notes"},
        # Where no key and no address tells who is meant, the form alone has to.
        {"what": "login", "why": "erin@rig77 was refused by ftp://frank:s3cr%25t@reg.corp.lan/"},
        {"what": "api", "why": "/load/secret-project and /v1/models/../secret-project"},
        {"what": "v6", "why": "[fe80:0:0:1:2:3:4:5]:8000 said SN-48213377, see https://gpu2:3000/d/x?token=hunter2"},
    ],
}


def test_no_planted_identifier_survives_anywhere() -> None:
    before, after = json.dumps(SITE).lower(), json.dumps(redact(SITE, known=("gpu2", "ops7"))).lower()
    assert [name for name in PLANTED if name.lower() not in before] == []
    assert [name for name in PLANTED if name.lower() in after] == []


def test_what_identifies_nobody_stays() -> None:
    text = {
        "why": "vLLM 0.32.0 (0.10.1.1), driver 570.124.06, kernel 5.14.0-570.12.1.el9_6.x86_64, 00000000:3B:00.0",
        "url": "http://127.0.0.1:8000/v1/models and /metrics, [::1]:9091, localhost",
        "at": "2026-11-30T02:45:00Z",
        "image": DIGEST,
        "commit": "4" * 40,
        "files": ["result.json", "metrics.jsonl.gz", "vllm-tiny.service", "model.safetensors.index.json"],
        "metric": "vllm:num_requests_running",
        "numbers": [1, 2.5, None, True],
        "api": "/v1/chat/completions, /metrics. /health: and /-/ready",
        "power": "energy of the allocated GPUs by generated tokens, J/token",
    }
    assert redact(text) == text


def test_definitions_and_figures_are_left_alone() -> None:
    document = {
        "definitions": {**DEFINITIONS, **server.DEFINITIONS},
        "server": server.figures(answers(), WINDOW, ("0",)),
    }
    assert redact(document) == document


def test_one_identifier_has_one_pseudonym_and_another_document_has_others() -> None:
    redactor = Redactor()
    first = redactor.redact({"host": "gpu1", "why": "gpu1 and GPU1 and gpu3.x.example"})
    assert first["why"].split(" and ")[:2] == [first["host"]] * 2
    assert redactor.redact({"host": "gpu1"}) == {"host": first["host"]}
    assert redact({"host": "gpu1"})["host"] != first["host"]
    assert re.fullmatch(r"host-[0-9a-f]{10}", first["host"])


@pytest.mark.parametrize("name", ["node", "server", "client", "figures"])
def test_a_host_called_like_a_part_of_the_document_does_not_break_its_form(name: str) -> None:
    found = redact({"host": name, name: {"value": 1}, "why": f"{name} is down"})
    assert found[name] == {"value": 1}
    assert name not in found["why"]


def test_the_document_itself_is_not_changed() -> None:
    before = json.dumps(SITE)
    redact(SITE)
    assert json.dumps(SITE) == before


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
        max_leaves=12,
    ),
    st.ip_addresses(v=4, network="10.0.0.0/8"),
    st.uuids(),
)
def test_whatever_is_around_an_identifier_it_goes(around: Any, address: Any, uuid: Any) -> None:
    text = json.dumps(redact({"around": around, "why": f"{address} {uuid}", str(address): [str(uuid)]}))
    assert str(uuid) not in text
    assert f'"{address}' not in text
