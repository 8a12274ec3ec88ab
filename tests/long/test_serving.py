"""Two instances of real vLLM behind the gateway: explained, planned, asked, hurt, upgraded, and gone without a trace.

The tests of this file build on each other, as the days of a node do.
"""

from __future__ import annotations

import http.client
import json
import re
import ssl
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.explained import explained
from tests.hardening import assert_hardened
from tests.labs import Nodes, Run
from tests.variants import variant
from vllm_node.exit_codes import ExitCode
from vllm_node.gateway import authority
from vllm_node.gateway.keys import digest
from vllm_node.lab.node import Spec
from vllm_node.serving.flags import cache

pytestmark = pytest.mark.real
NODE = "served"
KEYS = {name: f"{name}-of-these-tests-".ljust(43, "x") for name in ("alice", "bob", "carol")}
# What a vLLM server answers to anybody who reaches it, whatever `--api-key` says (docs/gateway.md).
OPEN = (
    *("/metrics", "/health/", "/version", "/load", "/ping", "/tokenize", "/detokenize", "/invocations", "/pooling"),
    *("/score", "/rerank", "/v1/score", "/v1/rerank", "/pause", "/resume", "/abort_requests", "/update_weights"),
    *("/docs", "/openapi.json", "/v1/load_lora_adapter", "//metrics", "/v1/../metrics", "/v1/%2e%2e/metrics"),
)
# It says what it can do, and then ends as one that does not fit the machine.
BROKEN = 'case "$*" in *--help*) exec vllm serve "$@";; esac; echo "RuntimeError: no kernel image is available" >&2; exit 1'


def instance(name: str, gpu: int, port: int, profile: str) -> dict[str, Any]:
    return {
        "name": name,
        "profile": profile,
        "model": "/srv/models/tiny",
        "gpus": [gpu],
        "port": port,
        "args": {"max-model-len": 2048, "max-num-seqs": 128, "max-num-batched-tokens": 2048, "enforce-eager": True},
        "env": {"VLLM_CPU_KVCACHE_SPACE": 1},
        "start_budget_s": 600,
        "shm_size": "1g",
    }


def variables(left: str = "interactive", right: str = "rag", **more: Any) -> dict[str, Any]:
    clients = [{"name": "alice", "key": KEYS["alice"]}, {"name": "bob", "key_sha256": digest(KEYS["bob"]), "models": ["left"]}]
    return {
        "vllm_instances": [instance("left", 0, 8000, left), instance("right", 1, 8001, right)],
        "gateway_enabled": True,
        "gateway_clients": clients,
        **more,
    }


# From the day on which bob has lost his key.
REVOKED = {"gateway_clients": variables()["gateway_clients"][:1]}


@dataclass(frozen=True)
class Answer:
    status: int
    body: bytes

    @property
    def data(self) -> Any:
        return json.loads(self.body)


class Served:
    """The node, and its gateway as a client elsewhere in the network reaches it."""

    def __init__(self, nodes: Nodes) -> None:
        self.nodes = nodes
        member = nodes.lab.member(NODE)
        assert member is not None
        self.address = nodes.lab.place(member).address

    def run(self, verb: str, given: Mapping[str, Any] | None = None) -> Run:
        return self.nodes.run(verb, limit=NODE, variables=given)

    def shell(self, command: str) -> str:
        return self.nodes.shell(NODE, command)

    def connect(self) -> http.client.HTTPSConnection:
        context = ssl.create_default_context(cafile=str(authority.path(NODE)))
        return http.client.HTTPSConnection(self.address, 8443, timeout=120, context=context)

    @contextmanager
    def asking(self, path: str, body: Any = None, key: str | None = "alice") -> Iterator[http.client.HTTPResponse]:
        """A request under way."""
        connection = self.connect()
        try:
            headers = {"Content-Type": "application/json"}
            if key is not None:
                headers["Authorization"] = f"Bearer {KEYS.get(key, key)}"
            text = None if body is None else json.dumps(body)
            connection.request("GET" if body is None else "POST", path, text, headers)
            yield connection.getresponse()
        finally:
            connection.close()

    def ask(self, path: str, body: Any = None, key: str | None = "alice") -> Answer:
        with self.asking(path, body, key) as answer:
            return Answer(answer.status, answer.read())

    def complete(self, model: str, tokens: int = 8, key: str | None = "alice", **more: Any) -> Answer:
        body = {"model": model, "prompt": "Hello", "max_tokens": tokens, "temperature": 0, "seed": 1, **more}
        return self.ask("/v1/completions", body, key)

    def metric(self, port: int, name: str) -> float:
        """Sum over the samples of a metric of an instance."""
        page = self.shell(f"curl -sf 127.0.0.1:{port}/metrics")
        return sum(float(line.rpartition(" ")[2]) for line in page.splitlines() if line.startswith((f"{name}{{", f"{name} ")))

    def targets(self) -> dict[str, str]:
        """Job and instance → up, as Prometheus on the node has it."""
        result = json.loads(self.shell("curl -sf 'http://127.0.0.1:9091/api/v1/query?query=up'"))["data"]["result"]
        return {f"{one['metric']['job']}/{one['metric']['instance']}": one["value"][1] for one in result}

    def images(self) -> dict[str, str]:
        listed = json.loads(self.shell("podman ps --format json"))
        return {one["Names"][0]: one["Image"] for one in listed}

    def installed(self) -> dict[str, str]:
        """Everything in the places of units and configurations."""
        return {
            path: state
            for path, state in self.nodes.tree(NODE).items()
            if path.startswith(("etc/containers/systemd", "etc/vllm-node", "etc/systemd"))
        }


@pytest.fixture(scope="module")
def served(nodes: Nodes) -> Iterator[Served]:
    nodes.make(Spec(NODE, podman="5.8"))
    yield Served(nodes)
    nodes.lab.remove(NODE)


@pytest.fixture(scope="module")
def bare(served: Served) -> dict[str, str]:
    return served.nodes.tree(NODE)


@pytest.fixture(scope="module")
def first(served: Served, bare: object) -> Run:
    run = served.run("up", variables())
    assert run.code == 0, (run.document, run.said)
    return run


def within(limit_s: float, condition: Callable[[], bool]) -> bool:
    """Whether it comes true in time."""
    end = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.5)
    return True


def test_both_answer_on_loopback_and_through_the_gateway(served: Served, first: Run) -> None:
    assert {one["model"] for one in first.host(NODE)["answers"]} == {"left", "right"}
    for model, port in (("left", 8000), ("right", 8001)):
        before = served.metric(port, "vllm:request_success_total")
        answer = served.complete(model)
        assert (answer.status, answer.data["model"], answer.data["usage"]["completion_tokens"]) == (200, model, 8)
        assert served.metric(port, "vllm:request_success_total") == before + 1
    assert {one["id"] for one in served.ask("/v1/models").data["data"]} == {"left", "right"}


def test_containers_and_units_are_closed_and_only_the_gateway_listens_outside(served: Served, first: Run) -> None:
    assert_hardened(served.shell, set(served.images()), ports=[8443])


@pytest.mark.parametrize("name", ["left", "right"])
def test_what_is_explained_is_what_vllm_says_of_itself(served: Served, first: Run, name: str) -> None:
    seen = explained(served.nodes, NODE, name, variables())
    assert seen.differences == []
    assert seen.observed >= 12


def test_the_flags_that_the_image_told_are_those_of_the_built_in_table(served: Served, first: Run) -> None:
    lock = served.nodes.lab.inventory()["all"]["vars"]["images_lock"]
    table, known = cache.load(lock["vllm"]["digest"]), cache.built_in()
    assert table is not None
    assert set(table.names) == set(known.names)
    assert len(table.names) > 300
    for name, flag in table.flags.items():
        told = known.flags[name]
        assert (flag.kind, flag.aliases, flag.short) == (told.kind, told.aliases, told.short), name
        assert (flag.several, flag.optional, flag.human) == (told.several, told.optional, told.human), name
        if not flag.open_choices:
            assert flag.choices == told.choices, name


def test_a_stream_comes_while_it_is_made_and_its_first_token_in_time(served: Served, first: Run) -> None:
    """Times of arrival through the gateway and without it, in turns. That each chunk comes alone is shown in tests/gateway.

    Two cores that are busy make vLLM itself hold tokens back, now and then the whole answer; a gateway that buffers would
    do so each time.
    """
    tokens, early, share = 400, [], []
    with served.nodes.tunnel(NODE, 8000) as direct:
        for _ in range(6):
            through, straight = (arrivals(served, one, tokens) for one in (None, direct))
            # An event may carry several tokens where vLLM's own parts have waited for each other.
            assert len(through) > 1
            early.append(through[0] - straight[0])
            share.append(through[0] / through[-1])
    assert min(share) < 0.5, share
    # What the gateway itself adds is bounded by `make bench`.
    assert statistics.median(early) < 0.5, early


def arrivals(served: Served, direct: str | None, tokens: int) -> list[float]:
    """Seconds from the request to each event that carries a token."""
    body = {"model": "left", "prompt": "Hello", "max_tokens": tokens, "ignore_eos": True, "stream": True, "seed": 1}
    body |= {"skip_special_tokens": False}
    if direct is None:
        connection: http.client.HTTPConnection = served.connect()
    else:
        connection = http.client.HTTPConnection(direct.removeprefix("http://"), timeout=60)
    connection.connect()
    started = time.monotonic()
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {KEYS['alice']}"}
    connection.request("POST", "/v1/completions", json.dumps(body), headers)
    found = []
    with connection.getresponse() as answer:
        assert answer.status == 200
        lines = (line for line in answer if line.startswith(b"data: {"))
        found += [time.monotonic() - started for line in lines if json.loads(line[6:])["choices"]]
    connection.close()
    return found


def test_two_hundred_streams_at_once_are_all_answered(served: Served, first: Run) -> None:
    def one(number: int) -> tuple[int, int]:
        body = {"model": ("left", "right")[number % 2], "prompt": f"{number}", "max_tokens": 4, "stream": True}
        with served.asking("/v1/completions", {**body, "ignore_eos": True}) as answer:
            return answer.status, answer.read().count(b"data: [DONE]")

    with ThreadPoolExecutor(200) as pool:
        assert list(pool.map(one, range(200))) == [(200, 1)] * 200


@pytest.mark.parametrize("path", OPEN)
def test_what_vllm_leaves_open_is_closed(served: Served, first: Run, path: str) -> None:
    for body in (None, {"model": "left", "prompt": "x"}):
        answer = served.ask(path, body)
        assert answer.status in (400, 404, 405), (path, answer)
        assert b"vllm:" not in answer.body


def test_the_same_paths_are_open_without_the_gateway(served: Served, first: Run) -> None:
    """Else the test above would prove nothing."""
    for path in ("/metrics", "/version", "/load", "/ping", "/openapi.json"):
        assert served.shell(f"curl -s -o /dev/null -w '%{{http_code}}' 127.0.0.1:8000{path}") == "200"


@pytest.mark.parametrize(
    ("key", "model", "status"),
    [(None, "left", 401), ("wrong-key-" * 5, "left", 401), ("carol", "left", 401), ("bob", "left", 200), ("bob", "right", 403)],
)
def test_keys_decide(served: Served, first: Run, key: str | None, model: str, status: int) -> None:
    assert served.complete(model, key=key).status == status


def test_a_client_that_goes_away_frees_its_place(served: Served, first: Run) -> None:
    before = served.metric(8000, "vllm:generation_tokens_total")
    # Sixteen answers at once are enough work to be in the middle of.
    body = {"model": "left", "prompt": "Hello", "n": 16, "max_tokens": 1900, "ignore_eos": True, "stream": True}
    with served.asking("/v1/completions", body) as answer:
        assert answer.status == 200
        assert within(30, lambda: served.metric(8000, "vllm:num_requests_running") > 0)
    assert within(30, lambda: served.metric(8000, "vllm:num_requests_running") == 0)
    # It did not run to its end, which would free the place as well.
    assert 0 < served.metric(8000, "vllm:generation_tokens_total") - before < 16 * 1900


def test_the_access_log_names_the_client_and_not_what_was_asked(served: Served, first: Run) -> None:
    served.complete("left", prompt="a-prompt-that-nobody-may-keep")
    log = served.shell("journalctl -u gateway.service -o cat --since -10min")
    assert '"client":"alice"' in log.replace(" ", "")
    assert "a-prompt-that-nobody-may-keep" not in served.shell("journalctl -o cat --since -10min")


def test_a_second_run_changes_nothing_and_secrets_are_nowhere(served: Served, first: Run, tmp_path: Path) -> None:
    vault = tmp_path / "vault.json"
    vault.write_text(json.dumps(variables(smoke_benchmark=False)))
    playbook = Path(sys.executable).with_name("ansible-playbook")
    done = served.nodes.program(
        str(playbook), "-vvv", "-i", "inventories/lab", "--limit", NODE, "-e", f"@{vault}", "playbooks/site.yml"
    )
    assert done.returncode == 0, done.stdout[-3000:]
    assert re.search(rf"^{NODE} .* changed=0 ", done.stdout, re.MULTILINE), done.stdout[-500:]
    places = {
        "what Ansible says": done.stdout + done.stderr,
        "what podman knows": served.shell("podman inspect $(podman ps -aq); podman secret inspect $(podman secret ls -q)"),
        "the journal": served.shell("journalctl -o cat"),
        "processes": served.shell("cat /proc/[0-9]*/cmdline /proc/[0-9]*/environ 2>/dev/null | tr '\\0' '\\n' || true"),
    }
    keys = {KEYS["alice"], KEYS["bob"], "lab-only-password"}
    for place, text in places.items():
        assert [key for key in keys if key in text] == [], place
    words = " -e ".join(f"'{KEYS[name]}'" for name in ("alice", "bob"))
    assert served.shell(f"grep -rlaF -e {words} /etc /tmp /var /run /root /usr/local || true") == ""


def test_a_revoked_key_is_refused_and_running_streams_go_on(served: Served, first: Run) -> None:
    body = {"model": "left", "prompt": "Hello", "max_tokens": 1900, "ignore_eos": True, "stream": True}
    with served.asking("/v1/completions", body) as answer:
        assert answer.readline().startswith(b"data: ")
        run = served.run("up", variables(**REVOKED))
        assert run.code == 0, (run.document, run.said)
        assert served.complete("left", key="bob").status == 401
        assert answer.read().count(b"data: [DONE]") == 1
    assert served.complete("left").status == 200


def test_one_that_is_killed_leaves_the_other_alone_and_comes_back(served: Served, first: Run) -> None:
    before = served.images()
    served.shell("podman kill --signal KILL vllm-right")
    seen = {served.complete("right").status for _ in range(3)}
    assert seen <= {502, 503, 504}
    for _ in range(5):
        assert served.complete("left").status == 200
    assert served.ask("/health", key=None).status == 200
    assert within(300, lambda: served.complete("right").status == 200)
    assert served.images() == before


def test_an_upgrade_to_what_never_gets_ready_returns_to_what_was_there(served: Served, first: Run) -> None:
    lock = served.nodes.lab.inventory()["all"]["vars"]["images_lock"]
    broken = variant(lock["vllm"], Entrypoint=["/bin/sh", "-c", BROKEN, "vllm"])
    given = variables(**REVOKED, images_lock={**lock, "vllm_next": broken})
    given["vllm_instances"][0]["image"] = "vllm_next"
    answer, images, files = served.complete("left").data["choices"], served.images(), served.installed()
    run = served.run("upgrade", given)
    assert run.code == ExitCode.ROLLED_BACK, run.document
    message = run.host(NODE)["failure"]["message"]
    assert "no kernel image" in message
    assert lock["vllm"]["digest"][:19] in message
    assert (served.images(), served.installed()) == (images, files)
    assert served.complete("left").data["choices"] == answer
    assert within(60, lambda: set(served.targets().values()) == {"1"}), served.targets()
    assert len(served.targets()) == 6


def test_an_upgrade_to_other_profiles_runs_and_is_explained(served: Served, first: Run) -> None:
    given = variables("agent", "batch", **REVOKED)
    run = served.run("upgrade", given)
    assert run.code == 0, (run.document, run.said)
    for name in ("left", "right"):
        assert explained(served.nodes, NODE, name, given).differences == []


@pytest.mark.parametrize(
    ("args", "advice"),
    [
        ({"swap-space": 4}, "0.18"),
        ({"disable-log-requests": True}, "enable-log-requests"),
        ({"max-num-batched-tokens": 32, "max-num-seqs": 128}, "max-num-batched-tokens"),
        ({"max-modle-len": 2048}, "max-model-len"),
        ({"tensor-parallel-size": 2}, "GPU"),
    ],
    ids=lambda one: next(iter(one)) if isinstance(one, dict) else "",
)
def test_wrong_flags_are_refused_before_anything_changes(served: Served, first: Run, args: dict[str, Any], advice: str) -> None:
    given = variables("agent", "batch", **REVOKED)
    given["vllm_instances"][0]["args"] = {**given["vllm_instances"][0]["args"], **args}
    images = served.images()
    run = served.run("preflight", given)
    assert run.code == 3, run.document
    told = [one for one in run.host(NODE)["findings"] if one["level"] == "fail"]
    assert any(advice in json.dumps(one) for one in told), told
    assert served.images() == images


def test_the_plan_is_within_five_per_cent_of_what_vllm_took(served: Served, first: Run) -> None:
    argv = [sys.executable, "-m", "vllm_node", "plan", NODE, "-i", "inventories/lab", "--json"]
    done = served.nodes.program(*argv, "-e", json.dumps(variables("agent", "batch", **REVOKED)))
    assert done.returncode == 0, done.stdout + done.stderr
    plans = json.loads(done.stdout)["hosts"][NODE]["plans"]
    assert [plan["instance"] for plan in plans] == ["left", "right"]
    for plan in plans:
        held = {one["name"]: one for one in plan["held"]}
        assert held["kv_tokens"]["planned"] > 0
        assert abs(held["kv_tokens"]["percent"]) <= 5, held


def test_the_node_is_as_it_was_found(served: Served, bare: dict[str, str]) -> None:
    run = served.run("down")
    assert run.code == 0, run.document
    assert served.nodes.tree(NODE) == bare
