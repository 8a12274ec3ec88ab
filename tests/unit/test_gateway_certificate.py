"""The certificate that is made on a node: by the real openssl, once, renewed in time, and gone when it is not wanted."""

from __future__ import annotations

import datetime
import json
import shutil
import stat
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from tests.unit.role_code import load, run_module
from vllm_node.gateway.certificates import complaints

NAMES = ["gpu1", "10.0.0.5", "fd00::1", "localhost"]

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="there is no openssl on this machine")


@pytest.fixture
def module() -> Any:
    return load("roles/gateway/library/gateway_certificate.py")


class Node:
    def __init__(self, module: Any, capsys: pytest.CaptureFixture[str], folder: Path) -> None:
        self.module, self.capsys = module, capsys
        self.state, self.tls = folder / "state", folder / "tls"

    def run(self, state: str = "made", names: list[str] = NAMES, **more: Any) -> dict[str, Any]:
        places = {"state_dir": str(self.state), "folder": str(self.tls), "owner": 0}
        return run_module(self.module, self.capsys, **places, names=names, state=state, **more)

    def texts(self) -> dict[str, str]:
        paths = [*self.tls.glob("*"), *self.state.glob("*.key")]
        return {path.name: path.read_text() for path in paths}

    def files(self) -> set[str]:
        return {Path(path).name for path in json.loads((self.state / "manifest.json").read_text())["files"]}


@pytest.fixture
def node(module: Any, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Node:
    return Node(module, capsys, tmp_path)


def test_a_client_that_trusts_the_authority_trusts_the_gateway(node: Node) -> None:
    answer = node.run()
    assert answer["changed"] is True
    assert answer["authority"] == (node.tls / "ca.crt").read_text()
    now = datetime.datetime.now(datetime.UTC)
    texts = node.texts()
    assert list(complaints(texts["server.crt"], texts["server.key"], NAMES, now)) == []
    leaf, authority = (x509.load_pem_x509_certificate(texts[name].encode()) for name in ("server.crt", "ca.crt"))
    leaf.verify_directly_issued_by(authority)
    assert authority.extensions.get_extension_for_class(x509.BasicConstraints).value == x509.BasicConstraints(True, 0)
    assert leaf.extensions.get_extension_for_class(x509.BasicConstraints).value.ca is False
    assert 364 <= (leaf.not_valid_after_utc - now).days <= 365
    assert (authority.not_valid_after_utc - now).days > 3600
    assert "PRIVATE KEY" not in json.dumps(answer)
    for path in (node.tls / "server.key", node.state / "gateway-ca.key"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o400
    assert node.files() == {"ca.crt", "server.crt", "server.key", "gateway-ca.key"}


def test_a_second_run_changes_nothing(node: Node) -> None:
    node.run()
    before = node.texts()
    assert node.run()["changed"] is False
    assert node.run(_ansible_check_mode=True)["changed"] is False
    assert node.texts() == before


def test_new_names_and_the_last_days_bring_a_new_certificate_of_the_same_authority(node: Node) -> None:
    node.run()
    first = node.texts()
    assert node.run(names=[*NAMES, "llm.site.example"])["changed"] is True
    second = node.texts()
    assert node.run(names=[*NAMES, "llm.site.example"], renew_days=366)["changed"] is True
    third = node.texts()
    assert len({texts["server.crt"] for texts in (first, second, third)}) == 3
    assert len({texts["ca.crt"] for texts in (first, second, third)}) == 1


def test_a_certificate_that_somebody_has_put_there_is_replaced(node: Node) -> None:
    node.run()
    (node.tls / "server.crt").write_text((node.tls / "ca.crt").read_text())
    assert node.run()["changed"] is True
    assert node.run()["changed"] is False


def test_check_mode_makes_nothing(node: Node) -> None:
    answer = node.run(_ansible_check_mode=True)
    assert (answer["changed"], answer["authority"]) == (True, None)
    assert not node.tls.exists()
    assert not node.state.exists()


def test_the_sites_certificate_takes_the_place_and_the_authority_goes(node: Node) -> None:
    node.run()
    assert node.run(state="site", _ansible_check_mode=True)["changed"] is True
    assert node.run(state="site")["changed"] is True
    assert set(node.texts()) == {"server.crt", "server.key"}
    assert node.run(state="site")["changed"] is False


def test_without_a_gateway_nothing_is_left(node: Node) -> None:
    assert node.run(state="absent")["changed"] is False
    node.run()
    assert node.run(state="absent")["changed"] is True
    assert node.texts() == {}
    assert node.files() == set()


def test_a_node_without_openssl_is_told_what_to_do(node: Node, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    answer = node.run()
    assert answer["failed"] is True
    assert "set gateway_tls_certificate and gateway_tls_key" in answer["msg"]
