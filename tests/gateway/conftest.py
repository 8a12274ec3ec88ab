"""A gateway in front of two model servers, one of which has two names."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import pytest

from tests.gateway.clients import KEYS
from tests.gateway.nginx import Gateway, gateway
from tests.load.conftest import first_in_line as first_in_line
from tests.load.server import TimedServer, serving

CLIENTS = [
    {"name": "app", "key": KEYS["app"]},
    {"name": "narrow", "key": KEYS["narrow"], "models": ["tiny"]},
    {"name": "slow", "key": KEYS["slow"], "connections": 2},
    {"name": "other", "key": KEYS["other"], "requests_per_minute": 6},
]


@dataclass(frozen=True)
class Door:
    """The gateway, and the server behind it that is asked for `tiny`; nobody is where `gone` should be."""

    gateway: Gateway
    server: TimedServer


@pytest.fixture(scope="session")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    folder = tmp_path_factory.mktemp("gateway")
    with ExitStack() as stack:
        server = stack.enter_context(serving(folder, "--ttft-us", "50000", "--itl-us", "20000"))
        instances = [{"name": "tiny", "port": server.port}, {"name": "gone", "port": 1}]
        one = stack.enter_context(
            gateway(folder, instances, gateway_clients=CLIENTS, gateway_client_timeout_s=1, gateway_max_body="1m")
        )
        yield Door(one, server)
