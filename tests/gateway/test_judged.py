"""What judges the gateway's files in its own image before any is installed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.gateway.nginx import configuration, judged, variables
from vllm_node.gateway import keys

INSTANCES = [{"name": "a", "port": 8000}, {"name": "b", "port": 8001}]
CLIENTS = [{"name": "app", "key": keys.fresh(), "requests_per_minute": 60}, {"name": "b", "key": keys.fresh(), "connections": 3}]


def texts(**own: object) -> dict[str, str]:
    return configuration(variables(**{"vllm_instances": INSTANCES, "gateway_clients": CLIENTS, **own}))


@pytest.mark.parametrize(
    "own",
    [
        {},
        {"gateway_clients": []},
        {"gateway_listen_address": "[2001:db8::1]", "gateway_port": 443, "gateway_max_body": "1024m", "gateway_paths": []},
        {"vllm_instances": []},
    ],
)
def test_what_the_role_writes_is_taken(tmp_path: Path, own: dict[str, object]) -> None:
    done = judged(tmp_path, texts(**own))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("nginx.conf", "nonsense;", "unknown directive"),
        ("gateway.js", "function {", "SyntaxError"),
        ("routes.json", "{", "failed to initialize preload objects"),
        ("secrets/clients.json", "[", "failed to initialize preload objects"),
    ],
)
def test_a_broken_file_is_refused(tmp_path: Path, name: str, text: str, said: str) -> None:
    good = texts()
    done = judged(tmp_path, {**good, name: text + "\n" + (good[name] if name == "nginx.conf" else "")})
    assert done.returncode == 1
    assert said in done.stderr


def test_an_image_without_njs_is_told_with_what_to_lock_instead(tmp_path: Path) -> None:
    done = judged(tmp_path, texts(), slim=True)
    assert done.returncode == 1
    assert "lock the full nginx image, not its slim variant" in done.stderr
