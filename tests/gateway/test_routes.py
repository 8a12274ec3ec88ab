"""Several instances behind one name: who is asked, who takes over, what reaches a server, and what a change does."""

from __future__ import annotations

import json
import os
import signal
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest

from tests.gateway.clients import KEYS, ask, connect, request
from tests.gateway.echo import PAUSE_S, PIECES, Echo, echo
from tests.gateway.nginx import Gateway, free_ports, gateway

CLIENTS = [{"name": "app", "key": KEYS["app"]}, {"name": "narrow", "key": KEYS["narrow"], "models": ["solo"]}]


@dataclass
class Site:
    """`solo` is served by one instance, `shared` and its adapter by two that run and one that does not."""

    gateway: Gateway
    solo: Echo
    replicas: tuple[Echo, Echo]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with ExitStack() as stack:
        solo = stack.enter_context(echo("solo"))
        one, two = (stack.enter_context(echo("shared", "adapter")) for _ in range(2))
        (nobody, alone) = free_ports(2)
        adapter = {"lora-modules": ["adapter=/srv/adapter"]}
        instances = [
            {"name": "a", "served_model_name": "solo", "port": solo.port},
            *({"name": f"r{port}", "served_model_name": "shared", "port": port, "args": adapter} for port in (one.port, two.port, nobody)),
            {"name": "lost", "port": alone},
        ]
        yield Site(stack.enter_context(gateway(tmp_path, instances, gateway_clients=CLIENTS)), solo, (one, two))


def complete(site: Site, model: str | None, **more: str) -> tuple[int, str]:
    answer = ask(site.gateway, "/v1/completions", {"model": model, "prompt": "x", "stream": True}, **more)
    return answer.status, answer.body


def test_a_model_has_its_instances(site: Site) -> None:
    assert complete(site, "solo")[0] == complete(site, "shared")[0] == complete(site, "adapter")[0] == 200
    assert [json.loads(body)["model"] for _, _, body in site.solo.seen] == ["solo"]
    found = [json.loads(body)["model"] for one in site.replicas for _, _, body in one.seen]
    assert sorted(found) == ["adapter", "shared"]


def test_instances_of_one_model_share_the_work_and_one_that_is_down_loses_nothing(site: Site) -> None:
    body = request("POST /v1/completions HTTP/1.1", json.dumps({"model": "shared", "stream": True}))
    held = [connect(site.gateway) for _ in range(8)]
    for one in held:
        one.sendall(body)
    for one in held:
        with one:
            assert b"HTTP/1.1 200" in one.recv(65536)
    counts = [len(one.seen) for one in site.replicas]
    # Every request arrived, and none of them twice.
    assert sum(counts) == 8
    assert min(counts) >= 2


def test_the_instance_with_the_fewest_answers_under_way_is_asked(site: Site) -> None:
    for one in site.replicas:
        one.pieces = 100
    with connect(site.gateway) as held:
        held.sendall(request("POST /v1/completions HTTP/1.1", json.dumps({"model": "shared"})))
        held.recv(65536)
        for one in site.replicas:
            one.pieces = 1
        for _ in range(4):
            assert complete(site, "shared")[0] == 200
    assert sorted(len(one.seen) for one in site.replicas) == [1, 4]


def test_an_instance_that_breaks_off_is_not_asked_through_another(site: Site) -> None:
    for one in site.replicas:
        one.breaks = True
    answer = ask(site.gateway, "/v1/completions", {"model": "shared"})
    assert (answer.status, answer.code) == (502, "bad_gateway")
    assert sum(len(one.seen) for one in site.replicas) == 1


def test_an_instance_that_is_not_there_is_told(site: Site) -> None:
    answer = ask(site.gateway, "/v1/completions", {"model": "lost"})
    assert (answer.status, answer.code, answer.headers["retry-after"]) == (502, "bad_gateway", "5")
    assert complete(site, "solo")[0] == 200


def test_a_model_that_is_not_served_or_not_allowed(site: Site) -> None:
    unknown = ask(site.gateway, "/v1/completions", {"model": "gpt"})
    assert (unknown.status, unknown.code) == (404, "model_not_found")
    refused = ask(site.gateway, "/v1/completions", {"model": "shared"}, client="narrow")
    assert (refused.status, refused.code) == (403, "model_not_allowed")
    assert ask(site.gateway, "/v1/completions", {"prompt": "x"}).code == "model_missing"
    assert complete(site, "solo", client="narrow")[0] == 200
    assert not any(one.seen for one in site.replicas)


@pytest.mark.parametrize("text", ['{"model": "solo", "model": "shared"}', '{"mod\\u0065l": "shared"}', '{"model": "sh\\u0061red"}'])
def test_a_body_that_hides_its_model_is_read_as_the_server_reads_it(site: Site, text: str) -> None:
    with connect(site.gateway) as one:
        one.sendall(request("POST /v1/completions HTTP/1.1", text, client="narrow"))
        assert b"HTTP/1.1 403" in one.recv(65536)
    assert not any(one.seen for one in site.replicas)


def test_the_models_of_all_instances_as_far_as_a_client_may_use_them(site: Site) -> None:
    def listed(client: str) -> list[str]:
        return [one["id"] for one in ask(site.gateway, "/v1/models", client=client).data()["data"]]

    assert sorted(listed("app")) == ["adapter", "shared", "solo"]
    assert listed("narrow") == ["solo"]


def test_health_is_that_of_the_best_instance(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    with gateway(tmp_path, [{"name": "a", "port": port}], gateway_clients=CLIENTS) as one:
        answer = ask(one, "/health", client=None)
        assert (answer.status, answer.data()) == (503, {"status": "unavailable"})
        assert ask(one, "/v1/models").code == "unavailable"


def test_nothing_of_a_clients_head_reaches_a_server(site: Site) -> None:
    pairs = {
        "X_Forwarded_For": "10.9.9.9",
        "X_Real_IP": "10.9.9.9",
        "Forwarded": "for=10.9.9.9",
        "X_Data_Parallel_Rank": "7",
        "Cookie": "a=b",
        "Upgrade": "websocket",
        "Connection": "Upgrade",
        "X_Request_Id": "mine",
    }
    answer = ask(site.gateway, "/v1/completions?x=y", {"model": "solo"}, **pairs)
    ((line, headers, _),) = site.solo.seen
    assert line == "POST /v1/completions HTTP/1.1"
    assert headers["x-forwarded-for"] == "127.0.0.1"
    assert headers["x-request-id"] == answer.headers["x-request-id"] == "mine"
    assert headers["content-type"] == "application/json"
    known = {"host", "content-type", "content-length", "accept", "x-forwarded-for", "x-forwarded-proto", "x-request-id"}
    assert set(headers) <= known
    assert KEYS["app"] not in str(headers)


def test_a_server_cannot_have_its_stream_held_back(site: Site) -> None:
    arrivals, started = [], time.monotonic()
    with connect(site.gateway) as one:
        one.sendall(request("POST /v1/completions HTTP/1.1", json.dumps({"model": "solo"})))
        while part := one.recv(65536):
            arrivals += [time.monotonic()] * (b"data: " in part)
            assert time.monotonic() - started < 5
    assert len(arrivals) == PIECES
    gaps = [after - before for before, after in pairwise(arrivals)]
    assert min(gaps) > 0.5 * PAUSE_S


def loaded(one: Gateway) -> float:
    # Programs that come before all others on this machine may hold everything up for a while.
    with urllib.request.urlopen(one.status_url, timeout=30) as answer:
        return float(answer.read().decode().partition("timestamp_seconds ")[2])


def test_a_key_is_revoked_without_an_end_to_streams(site: Site) -> None:
    before = loaded(site.gateway)
    assert len({loaded(site.gateway) for _ in range(12)}) <= 3, "all workers say the same, but for a rounded hundredth"
    site.solo.pieces = 20
    with connect(site.gateway) as one:
        one.sendall(request("POST /v1/completions HTTP/1.1", json.dumps({"model": "solo"}), client="narrow"))
        seen = one.recv(65536)
        time.sleep(0.4)
        changed_at = time.time()
        site.gateway.take_up(gateway_clients=CLIENTS[:1])
        end = time.monotonic() + 30
        while loaded(site.gateway) <= before + 0.3 and time.monotonic() < end:
            time.sleep(0.05)
        assert abs(loaded(site.gateway) - changed_at) < 1
        # For a tenth of a second nginx lets old and new workers answer.
        time.sleep(0.3)
        assert ask(site.gateway, "/v1/models", client="narrow").status == 401
        assert ask(site.gateway, "/v1/models").status == 200
        while part := one.recv(65536):
            seen += part
    assert seen.count(b"data: ") == 20


def test_a_stop_lets_streams_end_and_takes_no_new_ones(site: Site) -> None:
    site.solo.pieces = 20
    with connect(site.gateway) as one:
        one.sendall(request("POST /v1/completions HTTP/1.1", json.dumps({"model": "solo"})))
        seen = one.recv(65536)
        os.kill(site.gateway.process.pid, signal.SIGQUIT)
        time.sleep(0.3)
        with pytest.raises(ConnectionRefusedError):
            connect(site.gateway)
        while part := one.recv(65536):
            seen += part
    assert seen.count(b"data: ") == 20
    assert site.gateway.process.wait(timeout=10) == 0


def test_a_configuration_that_nginx_refuses_is_not_taken_up(site: Site) -> None:
    before = loaded(site.gateway)
    time.sleep(0.4)
    site.gateway.take_up(gateway_max_body="much")
    time.sleep(0.5)
    assert abs(loaded(site.gateway) - before) < 0.1
    assert "[emerg]" in site.gateway.log
    assert ask(site.gateway, "/v1/models").status == 200
