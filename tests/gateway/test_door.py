"""What the real nginx lets in: by path, by method, by key, by size and by pace; and what it says of it."""

from __future__ import annotations

import json
import socket
import time
import urllib.request

import pytest

from tests.gateway.clients import KEYS, ask, connect, raw, request, status
from tests.gateway.conftest import Door
from tests.unit.role_code import shared_code

BODY = {"model": "tiny", "prompt": "a secret of the client", "max_tokens": 2, "stream": True}
TEXT = json.dumps(BODY)
# What vLLM answers without its own key, and what its documentation and management pages are.
OPEN_PATHS = (
    *("/metrics", "/version", "/load", "/ping", "/tokenize", "/detokenize", "/invocations", "/pooling", "/score"),
    *("/rerank", "/v1/rerank", "/v2/rerank", "/v1/score", "/pause", "/resume", "/abort_requests", "/update_weights"),
    *("/docs", "/redoc", "/openapi.json", "/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/is_sleeping", "/sleep"),
    *("/wake_up", "/server_info", "/reset_prefix_cache", "/start_profile", "/scale_elastic_ep", "/collective_rpc"),
    *("/inference/v1/generate", "/cohere/v1/embed", "/v1", "/v1/", "/", "/-/models/1", "/-/health/1", "/v1/realtime"),
)
TRICKS = (
    *("//metrics", "///metrics", "/./metrics", "/v1/../metrics", "/v1/%2e%2e/metrics", "/v1/..%2fmetrics"),
    *("/v1/models/../../metrics", "/v1/completions/../../metrics", "/%6detrics", "/metrics/", "/metrics;x", "/metrics%00"),
    *("/v1/models/", "/v1/models%2f", "/v1/completions/", "/V1/models", "/v1//models", "/v1/models/tiny", "/v1\\..\\metrics"),
    *("/health/", "/health/../metrics", "/metrics?x=/v1/models", "http://127.0.0.1:8000/metrics", "https://x/version"),
    *("/@error_404", "@/v1/completions", "/@/v1/completions", "*"),
)


def asked(door: Door) -> int:
    """How many POSTs have reached the server."""
    return int(door.server.get("/stats")["requests"])


@pytest.mark.parametrize("client", ["app", None])
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_what_is_not_named_is_not_there_and_nobody_is_asked(door: Door, method: str, client: str | None) -> None:
    before = asked(door)
    seen = len(door.gateway.requests())
    found = {
        path: status(raw(door.gateway, request(f"{method} {path} HTTP/1.1", TEXT if method == "POST" else "", client=client)))
        for path in (*OPEN_PATHS, *TRICKS)
    }
    assert {path: code for path, code in found.items() if code not in (400, 404)} == {}
    assert found["/metrics"] == found["/version"] == found["//metrics"] == found["/v1/../metrics"] == 404
    assert asked(door) == before
    assert {line["instance"] for line in door.gateway.requests()[seen:]} <= {"", "-"}


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "PROPFIND", "HEAD", "GET", "get", "CONNECT"])
def test_a_question_is_a_post(door: Door, method: str) -> None:
    before = asked(door)
    found = raw(door.gateway, request(f"{method} /v1/completions HTTP/1.1"))
    assert status(found) == (400 if method == "get" else 405)
    assert asked(door) == before


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_the_models_are_only_read(door: Door, method: str) -> None:
    assert ask(door.gateway, "/v1/models", method=method).code == "method_not_allowed"


SMUGGLED = "POST /metrics HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.mark.parametrize(
    "headers",
    [
        ("Content-Length: 4", "Transfer-Encoding: chunked"),
        ("Transfer-Encoding: chunked", "Transfer-Encoding: identity"),
        ("Transfer-Encoding: chunked, identity",),
        ("Transfer-Encoding: xchunked",),
        ("Content-Length: 4", "Content-Length: 5"),
        ("Content-Length: +4",),
        ("Content-Length : 4",),
        ("Authorization: Bearer " + KEYS["other"],),
    ],
)
def test_a_head_that_two_would_read_differently_is_refused(door: Door, headers: tuple[str, ...]) -> None:
    before = asked(door)
    answer = raw(door.gateway, request("POST /v1/completions HTTP/1.1", "", *headers) + b"0\r\n\r\n" + SMUGGLED.encode())
    assert status(answer) in (400, 501)
    assert answer.count(b"HTTP/1.1 ") == 1
    assert asked(door) == before


def test_plain_http_is_refused(door: Door) -> None:
    with socket.create_connection(("127.0.0.1", door.gateway.port), timeout=5) as one:
        one.sendall(b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n")
        assert status(one.recv(4096)) == 400


def test_a_key_opens(door: Door) -> None:
    for scheme in ("Bearer", "bearer", "BEARER"):
        answer = ask(door.gateway, "/v1/models", client=None, Authorization=f"{scheme} {KEYS['app']}")
        assert [one["id"] for one in answer.data()["data"]] == ["tiny"]


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "Bearer",
        "Bearer ",
        "Bearer wrong-wrong-wrong-wrong-wrong-wrong",
        "Bearer " + KEYS["app"][:-1],
        "Bearer " + KEYS["app"] + "x",
        "Bearer " + KEYS["app"].upper(),
        "Basic " + KEYS["app"],
        "Basic Bearer " + KEYS["app"],
        KEYS["app"],
        "Bearer constructor",
        "Bearer __proto__",
    ],
)
@pytest.mark.parametrize("path", ["/v1/models", "/v1/completions"])
def test_without_a_known_key_nobody_gets_in(door: Door, path: str, header: str | None) -> None:
    before = asked(door)
    headers = {} if header is None else {"Authorization": header}
    answer = ask(door.gateway, path, None if path == "/v1/models" else BODY, client=None, **headers)
    assert (answer.status, answer.code, answer.headers["www-authenticate"]) == (401, "invalid_api_key", "Bearer")
    assert asked(door) == before


def test_a_key_elsewhere_does_not_count(door: Door) -> None:
    key = KEYS["app"]
    assert ask(door.gateway, f"/v1/models?api_key={key}&key={key}", client=None).status == 401
    assert ask(door.gateway, "/v1/models", client=None, X_Api_Key=key, Cookie=f"key={key}").status == 401


def test_health_needs_no_key_and_tells_nothing(door: Door) -> None:
    answer = ask(door.gateway, "/health", client=None)
    assert (answer.status, answer.data()) == (200, {"status": "ok"})


def test_too_large_a_body_is_refused_with_and_without_a_length(door: Door) -> None:
    before = asked(door)
    large = {"model": "tiny", "prompt": "x" * 1_100_000}
    assert ask(door.gateway, "/v1/completions", large).code == "too_large"
    chunk = b"80000\r\n" + b"x" * 0x80000 + b"\r\n"
    head = request("POST /v1/completions HTTP/1.1", "", "Transfer-Encoding: chunked")
    assert status(raw(door.gateway, head + chunk * 3 + b"0\r\n\r\n")) == 413
    assert asked(door) == before


@pytest.mark.parametrize("size", [100, 200_000, 900_000])
def test_a_body_of_any_size_below_the_limit_arrives(door: Door, size: int) -> None:
    answer = ask(door.gateway, "/v1/completions", {**BODY, "prompt": "x" * size})
    assert (answer.status, answer.body.count("data: ")) == (200, 4)


@pytest.mark.parametrize("body", ["", "{", "[]", "null", '"x"', "1", '{"model": NaN}', "\ufeff{}"])
def test_what_is_no_object_of_json_is_told_so(door: Door, body: str) -> None:
    answer = raw(door.gateway, request("POST /v1/completions HTTP/1.1", body or " "))
    assert status(answer) == 400
    assert b'"code":"invalid_json"' in answer


@pytest.mark.parametrize("model", [None, 1, ["tiny"], {"a": 1}, ""])
def test_a_model_is_a_name(door: Door, model: object) -> None:
    assert ask(door.gateway, "/v1/completions", {**BODY, "model": model}).code in ("model_missing", "model_not_found")


@pytest.mark.parametrize("head", [b"", b"GET /v1/models HTTP/1.1\r\nHost: x\r\n", b"complete"])
def test_a_slow_client_is_not_waited_for(door: Door, head: bytes) -> None:
    if head == b"complete":
        head = request("POST /v1/completions HTTP/1.1", "", "Content-Length: 100") + b"{"
    before = asked(door)
    with connect(door.gateway) as one:
        if head:
            one.sendall(head)
        started = time.monotonic()
        found = one.recv(4096)
        assert time.monotonic() - started < 5
        assert status(found) in (0, 408)
    assert asked(door) == before


def test_a_head_that_is_too_large_is_refused(door: Door) -> None:
    assert status(raw(door.gateway, request("GET /v1/models HTTP/1.1", "", "X-Long: " + "x" * 40_000))) in (400, 431)


def test_a_client_has_so_many_answers_under_way_and_no_more(door: Door) -> None:
    body = request("POST /v1/completions HTTP/1.1", json.dumps({**BODY, "max_tokens": 30}), client="slow")
    held = [connect(door.gateway) for _ in range(2)]
    try:
        for one in held:
            one.sendall(body)
            assert b"200" in one.recv(4096)
        answer = ask(door.gateway, "/v1/completions", BODY, client="slow")
        assert (answer.status, answer.code, answer.headers["retry-after"]) == (429, "rate_limit_exceeded", "1")
        assert ask(door.gateway, "/v1/completions", BODY).status == 200
    finally:
        for one in held:
            one.close()
    time.sleep(0.2)
    assert ask(door.gateway, "/v1/completions", BODY, client="slow").status == 200


def test_a_client_has_so_many_requests_a_minute_and_no_more(door: Door) -> None:
    codes = [ask(door.gateway, "/v1/models", client="other").status for _ in range(4)]
    assert codes == [200, 200, 429, 429]
    assert ask(door.gateway, "/v1/models").status == 200


def test_the_log_says_who_asked_what_and_when_it_began_to_be_answered(door: Door) -> None:
    answer = ask(door.gateway, "/v1/completions?a=b", {**BODY, "max_tokens": 25}, X_Request_Id="mine-1")
    (line,) = [one for one in door.gateway.requests("/v1/completions") if one["request_id"] == "mine-1"]
    assert line["client"] == "app"
    assert (line["model"], line["method"], line["status"], line["whole"]) == ("tiny", "POST", 200, True)
    assert answer.headers["x-request-id"] == "mine-1"
    assert line["instance"] == f"127.0.0.1:{door.server.port}"
    # The server sends the head of a stream at once, the first token after 50 ms, and the last after 530.
    assert line["header_s"] < 0.04
    assert 0.05 <= line["first_byte_s"] < 0.3
    assert 0.5 < line["total_s"] < 2
    assert line["bytes_out"] > 100
    assert "T" in line["time"]


@pytest.mark.parametrize("given", ["", "x" * 65, 'a"b', "a b", "ä"])
def test_an_id_that_could_disturb_the_log_is_replaced(door: Door, given: str) -> None:
    answer = raw(door.gateway, request("GET /v1/models HTTP/1.1", "", f"X-Request-Id: {given}"))
    (told,) = [line for line in answer.decode().splitlines() if line.startswith("X-Request-Id: ")]
    assert len(told) == len("X-Request-Id: ") + 32


def test_no_prompt_no_key_and_no_query_is_in_the_log(door: Door) -> None:
    ask(door.gateway, "/v1/models?api_key=in-the-query")
    ask(door.gateway, "/v1/models?api_key=in-the-query", client=None)
    ask(door.gateway, "/v1/completions?api_key=in-the-query", {**BODY, "model": "gone"})
    ask(door.gateway, "/v1/completions?api_key=in-the-query", {**BODY, "model": "not one that is served"})
    raw(door.gateway, request("POST /v1/completions?api_key=in-the-query HTTP/1.1", "{secret of the client"))
    log = door.gateway.log
    assert len(door.gateway.requests()) > 5
    for secret in ("in-the-query", "secret of the client", "not one that is served", *KEYS.values()):
        assert secret not in log


def test_what_brings_the_node_up_finds_it_closed(door: Door) -> None:
    assert shared_code("gateway_door").ajar("127.0.0.1", door.gateway.port) is None


def test_the_status_page_is_on_loopback_and_nowhere_else(door: Door) -> None:
    with urllib.request.urlopen(door.gateway.status_url, timeout=30) as answer:
        text = answer.read().decode()
    assert "gateway_config_last_reload_successful 1\n" in text
    loaded = float(text.partition("timestamp_seconds ")[2])
    assert 0 <= time.time() - loaded < 300
    assert ask(door.gateway, "/metrics").status == 404
