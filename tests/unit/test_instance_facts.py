"""What the module tells of an instance: read only, in time, and null with a reason for what it could not see."""

from __future__ import annotations

import json
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.unit.metrics_pages import VLLM_PAGE, needs
from tests.unit.node_code import utils
from tests.unit.role_code import load, run_module
from tests.unit.web import Site, nobody, serving

host_code = utils("snapshot_host")

DIGEST = "sha256:" + "a" * 64
INSPECTED = {
    "Image": "b" * 64,
    "ImageName": f"reg.example/vllm@{DIGEST}",
    "ImageDigest": DIGEST,
    "State": {"Running": True, "Status": "running", "StartedAt": "2026-11-30T02:00:00Z"},
    "Config": {"Cmd": ["/models/tiny", "--api-key", "hush", "more", "--max-num-batched-tokens", "512", "--hf-token=hush"]},
}
PODMAN = {
    "podman container inspect vllm-tiny": json.dumps([INSPECTED]),
    "podman image inspect": json.dumps(["reg.example/vllm@sha256:2", f"reg.example/vllm@{DIGEST}"]),
    "systemctl show": "ActiveState=active\nNRestarts=2\n",
}
PAGE = """# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="tiny"} 1.0
vllm:num_requests_running{engine="1",model_name="tiny"} 2.0
vllm:num_requests_waiting{engine="0",model_name="tiny"} 0.0
vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 9.0
vllm:cache_config_info{block_size="16",cache_dtype="auto",note="a \\"b\\"",num_gpu_blocks="1000"} 1.0
"""
IDLE = 'vllm:num_requests_running{engine="0"} 0.0\nvllm:num_requests_waiting{engine="0"} 0.0\n'


class Node(host_code.Host):  # type: ignore[misc, name-defined]
    """Commands answer from a table by the beginning of their words."""

    def __init__(self, table: Mapping[str, str], limit_s: float = 3.0) -> None:
        super().__init__(limit_s)
        self.table = table
        self.ran: list[str] = []

    def which(self, program: str) -> str | None:
        return f"/usr/bin/{program}" if any(words.startswith(program) for words in self.table) else None

    def run(self, *argv: str) -> Any:
        words = " ".join(argv)
        self.ran.append(words)
        found = next((text for start, text in self.table.items() if words.startswith(start)), None)
        if found is None:
            return host_code.Answer(125, "", "no such object", None)
        return host_code.Answer(0, found, "", None)


@pytest.fixture
def module() -> Any:
    return load("roles/benchmark/library/instance_facts.py")


@pytest.fixture
def api() -> Iterator[Site]:
    pages = {
        "/version": (200, '{"version": "0.32.0"}'),
        "/v1/models": (200, json.dumps({"data": [{"id": "tiny", "max_model_len": 2048}]})),
        "/metrics": (200, PAGE),
    }
    with serving(Site(pages=pages)) as site:
        yield site


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "tiny"
    folder.mkdir()
    write(folder, "config.json", {"model_type": "llama", "vocab_size": 32000, "max_position_embeddings": 2048, "eos_token_id": 2})
    write(folder, "generation_config.json", {"bos_token_id": 1, "eos_token_id": [2, 7]})
    write(
        folder,
        "tokenizer_config.json",
        {"chat_template": "{{ x }}", "added_tokens_decoder": {"0": {"special": True}, "9": {"special": False}}},
    )
    (folder / "model.safetensors").write_bytes(b"x" * 100)
    return folder


def write(folder: Path, name: str, document: Any) -> None:
    (folder / name).write_text(json.dumps(document))


def take(module: Any, node: Node, url: str, **changes: Any) -> dict[str, Any]:
    arguments: dict[str, Any] = {
        "instance": "tiny",
        "port": urllib.parse.urlsplit(url).port,
        "model_path": None,
        "container": None,
        "prometheus_url": None,
        "api_key": None,
        **changes,
    }
    found: dict[str, Any] = module.take(node, arguments)
    return found


def unseen(found: dict[str, Any]) -> dict[str, str]:
    return {one["what"]: one["why"] for one in found["unseen"]}


def test_everything_of_a_healthy_instance(module: Any, api: Site, model: Path) -> None:
    node = Node(PODMAN)
    found = take(module, node, api.url, model_path=str(model))
    assert found["image"] == {
        "name": f"reg.example/vllm@{DIGEST}",
        "id": "b" * 64,
        "digest": DIGEST,
        "digests": ["sha256:2", DIGEST],
    }
    assert (found["started_at"], found["unit"]) == ("2026-11-30T02:00:00Z", {"active": "active", "restarts": 2})
    assert (found["version"], found["served_models"], found["max_model_len"]) == ("0.32.0", ["tiny"], 2048)
    assert found["cache_config"]["note"] == 'a "b"'
    assert found["activity"] == {"running": 3.0, "waiting": 0.0, "finished_last_minute": None, "busy": True}
    assert unseen(found) == {"finished_last_minute": "no Prometheus was named to be asked"}
    # It only looks, and asks the model nothing.
    assert {words.split()[0] + " " + words.split()[1] for words in node.ran} == {
        "journalctl --unit=vllm-node-load.service",
        "podman container",
        "podman image",
        "systemctl show",
    }
    assert {path for path, _ in api.asked} == {"/version", "/v1/models", "/metrics"}


def test_a_secret_on_the_command_line_stays_on_the_node(module: Any, api: Site) -> None:
    found = take(module, Node(PODMAN), api.url)
    assert found["command"] == [
        *("/models/tiny", "--api-key", "(hidden)", "(hidden)"),
        *("--max-num-batched-tokens", "512", "--hf-token=(hidden)"),
    ]


def test_what_a_workload_has_to_know_of_the_model(module: Any, api: Site, model: Path) -> None:
    found = take(module, Node(PODMAN), api.url, model_path=str(model))["model"]
    assert found["files"]["model.safetensors"] == 100
    assert len(found["config_sha256"]) == 64
    facts = found["facts"]
    assert (facts["vocab_size"], facts["max_position_embeddings"], facts["model_type"]) == (32000, 2048, "llama")
    assert (facts["bos_token_ids"], facts["eos_token_ids"], facts["pad_token_ids"]) == ([1], [2, 7], [])
    assert facts["special_token_ids"] == [0, 1, 2, 7]
    assert facts["chat_template"] is True


def test_special_tokens_of_newer_tokenizers_and_of_models_with_parts(module: Any, tmp_path: Path) -> None:
    write(tmp_path, "config.json", {"text_config": {"vocab_size": 9, "pad_token_id": 8}, "vocab_size": None})
    write(tmp_path, "tokenizer.json", {"added_tokens": [{"id": 5, "special": True}, {"id": 6, "special": False}]})
    (tmp_path / "chat_template.jinja").write_text("x")
    facts = module.look_model(str(tmp_path))["facts"]
    assert (facts["vocab_size"], facts["special_token_ids"], facts["chat_template"]) == (9, [5, 8], True)


@pytest.mark.parametrize("text", ["", "[]", "{", '{"vocab_size": "many", "eos_token_id": {"a": 1}}'])
def test_a_model_that_says_nothing_sensible_has_no_facts_and_breaks_nothing(
    module: Any, tmp_path: Path, text: str
) -> None:
    (tmp_path / "config.json").write_text(text)
    facts = module.look_model(str(tmp_path))["facts"]
    assert facts["vocab_size"] is None
    assert facts["special_token_ids"] == []


def test_a_single_file_has_a_name_and_a_size(module: Any, tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    found = module.look_model(str(tmp_path / "m.gguf"))
    assert (found["files"], found["facts"], found["config_sha256"]) == ({"m.gguf": 4}, None, None)


def test_an_instance_that_is_down_gives_nulls_with_reasons(module: Any, tmp_path: Path) -> None:
    found = take(module, Node({}), nobody(), model_path=str(tmp_path / "gone"), prometheus_url=nobody())
    why = unseen(found)
    for name in ("image", "command", "version", "max_model_len", "cache_config", "model"):
        assert found[name] is None
        assert why[name]
    assert found["activity"] == {"running": None, "waiting": None, "finished_last_minute": None, "busy": None}
    assert "refused" in why["version"]
    assert why["image"] == "podman is not installed"
    assert "FileNotFoundError" in why["model"]


def test_a_container_that_does_not_run_or_is_not_there_is_told(module: Any, api: Site) -> None:
    stopped = {**INSPECTED, "State": {"Running": False, "Status": "exited"}}
    table = {**PODMAN, "podman container inspect vllm-tiny": json.dumps([stopped])}
    assert unseen(take(module, Node(table), api.url))["image"] == "the container vllm-tiny does not run (exited)"
    other = unseen(take(module, Node(PODMAN), api.url, container="vllm-other"))["command"]
    assert other == "podman container inspect vllm-other: exit code 125: no such object"


@pytest.mark.parametrize("text", ["", "[]", "null", '[{"State": null}]', "not json"])
def test_an_answer_of_podman_that_cannot_be_read_is_a_reason(module: Any, api: Site, text: str) -> None:
    found = take(module, Node({**PODMAN, "podman container inspect vllm-tiny": text}), api.url)
    assert found["image"] is None
    assert unseen(found)["image"]


def test_an_api_with_a_key_is_asked_with_it_and_says_so_without(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(Site(pages={"/v1/models": (401, "no"), "/metrics": (200, IDLE)})) as site:
        assert unseen(take(module, Node(PODMAN), site.url))["max_model_len"] == "/v1/models answers 401: the API wants its key"
        seen: list[tuple[str, str]] = []
        monkeypatch.setattr(urllib.request.Request, "add_header", lambda _, *header: seen.append(header))
        take(module, Node(PODMAN), site.url, api_key="k")
    assert ("Authorization", "Bearer k") in seen


class AnyQuery(dict[str, tuple[int, str]]):
    """One answer for whatever Prometheus is asked."""

    def get(self, path: str, default: Any = None) -> Any:
        return super().get(path.partition("?")[0], default)


@pytest.mark.parametrize(
    ("recent", "activity", "busy"),
    [
        ([{"value": [1, "12"]}], IDLE, True),
        ([{"value": [1, "0"]}], IDLE, False),
        ([], IDLE, False),
        ([{"value": [1, "0"]}], PAGE, True),
        # A page without the gauges is not an idle instance.
        ([{"value": [1, "0"]}], "", None),
        ([{"value": [1, "3"]}], "", True),
    ],
)
def test_whether_others_use_the_instance(module: Any, recent: Any, activity: str, busy: bool | None) -> None:
    answer = json.dumps({"status": "success", "data": {"resultType": "vector", "result": recent}})
    pages = AnyQuery({"/metrics": (200, activity), "/api/v1/query": (200, answer)})
    with serving(Site(pages=pages)) as site:
        found = take(module, Node(PODMAN), site.url, prometheus_url=site.url + "/")
        asked = next(path for path, _ in site.asked if path.startswith("/api/v1/query"))
    assert found["activity"]["busy"] is busy
    query = urllib.parse.parse_qs(urllib.parse.urlsplit(asked).query)["query"][0]
    assert query == 'sum(increase(vllm:request_success_total{job="vllm", instance="tiny"}[1m]))'
    if not recent:
        assert found["activity"]["finished_last_minute"] is None
        assert "has not scraped" in unseen(found)["finished_last_minute"]


def test_the_journal_tells_when_a_load_of_ours_ended(module: Any, api: Site) -> None:
    told = json.dumps({"__REALTIME_TIMESTAMP": str(round((time.time() - 42) * 1e6)), "MESSAGE": "x"})
    found = take(module, Node({**PODMAN, "journalctl --unit=vllm-node-load.service --unit=vllm-node-peer.service": told}), api.url)
    assert found["own_load_s_ago"] == pytest.approx(42, abs=5)
    for nothing in ("", "-- No entries --", "{}"):
        assert take(module, Node({**PODMAN, "journalctl": nothing}), api.url)["own_load_s_ago"] is None
    assert take(module, Node(PODMAN), api.url)["own_load_s_ago"] is None


def test_a_server_that_hangs_costs_only_its_own_answers_and_not_the_time(module: Any, api: Site) -> None:
    api.delay_s = 3.0
    began = time.monotonic()
    found = take(module, Node(PODMAN, limit_s=0.5), api.url)
    assert time.monotonic() - began < 2.0
    assert found["version"] is None
    assert unseen(found)["version"]
    assert found["image"]["digest"] == DIGEST


def test_an_answer_that_is_cut_off_is_not_believed(module: Any, api: Site) -> None:
    api.cut = True
    found = take(module, Node(PODMAN), api.url)
    assert found["version"] is None
    assert unseen(found)["running"]


@pytest.mark.skipif(needs(VLLM_PAGE) is not None, reason=needs(VLLM_PAGE) or "")
def test_a_real_page(module: Any, api: Site) -> None:
    api.pages["/metrics"] = (200, VLLM_PAGE.read_text())
    found = take(module, Node(PODMAN), api.url)
    assert (found["activity"]["running"], found["activity"]["busy"]) == (0.0, False)
    assert {"block_size", "num_gpu_blocks", "enable_prefix_caching"} <= set(found["cache_config"])


def test_as_a_module_it_changes_nothing_even_in_check_mode(
    module: Any, api: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    port = urllib.parse.urlsplit(api.url).port
    answer = run_module(module, capsys, instance="nobody-here", port=port, time_limit_s=2, _ansible_check_mode=True)
    assert answer["changed"] is False
    assert answer["facts"]["version"] == "0.32.0"
    assert answer["facts"]["image"] is None
