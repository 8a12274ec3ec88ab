"""Only what is really dead is unhealthy: a slow answer under load is not."""

from __future__ import annotations

import re
import runpy
import socket
import sys
import threading
import urllib.request
from collections.abc import Callable

import pytest

from tests.unit.role_code import ROOT
from tests.unit.web import Site, nobody, serving

SCRIPT = ROOT / "roles/vllm/files/healthcheck.py"
Check = Callable[[str], str | None]


@pytest.fixture
def check(monkeypatch: pytest.MonkeyPatch) -> Check:
    """Runs the script as the container does, with a fraction of its patience; returns what it died of."""
    really = urllib.request.urlopen

    def ask(url: str) -> str | None:
        monkeypatch.setattr(sys, "argv", ["healthcheck.py", url])
        monkeypatch.setattr(urllib.request, "urlopen", lambda url, timeout: really(url, timeout=timeout / 100))
        try:
            runpy.run_path(str(SCRIPT), run_name="__main__")
        except SystemExit as end:
            return str(end.code)
        return None

    return ask


@pytest.mark.parametrize("status", [200, 404, 429, 500])
def test_a_server_that_answers_is_alive(check: Check, status: int) -> None:
    with serving(Site({"/health": (status, "")})) as site:
        assert check(site.url + "/health") is None


def test_an_engine_that_says_that_it_died_is_dead(check: Check) -> None:
    with serving(Site({"/health": (503, "")})) as site:
        assert check(site.url + "/health") == "the engine is dead: 503"


def test_a_slow_server_is_alive(check: Check, capsys: pytest.CaptureFixture[str]) -> None:
    with serving(Site({"/health": (200, "")}, delay_s=0.4)) as site:
        assert check(site.url + "/health") is None
    assert capsys.readouterr().out == "slow, but alive\n"


def test_a_full_queue_of_connections_is_alive(check: Check) -> None:
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        port = full.getsockname()[1]
        waiting = [socket.socket() for _ in range(3)]
        for one in waiting:
            one.setblocking(False)
            one.connect_ex(("127.0.0.1", port))
        assert check(f"http://127.0.0.1:{port}/health") is None
        for one in waiting:
            one.close()


def test_a_port_that_nobody_listens_on_is_dead(check: Check) -> None:
    dead = check(nobody() + "/health")
    assert dead is not None
    assert dead.startswith("nobody answers: ")


def test_a_server_that_hangs_up_at_once_is_dead(check: Check) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=lambda: server.accept()[0].close())
        thread.start()
        assert check(f"http://127.0.0.1:{server.getsockname()[1]}/health") is not None
        thread.join(5)


def test_its_patience_ends_before_podmans() -> None:
    unit = (ROOT / "roles/vllm/templates/vllm.container.j2").read_text()
    patience, limit = re.search(r"timeout=(\d+)", SCRIPT.read_text()), re.search(r"HealthTimeout=(\d+)s", unit)
    assert patience
    assert limit
    assert int(patience[1]) < int(limit[1])
