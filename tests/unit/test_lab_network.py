"""Names and addresses of a lab: a bridge that the kernel takes, a subnet that nobody uses."""

from __future__ import annotations

import ipaddress
import json

import pytest

from vllm_node.lab import network
from vllm_node.lab.errors import LabError


def use(monkeypatch: pytest.MonkeyPatch, *addresses: str) -> None:
    """The machine has exactly these addresses."""
    links = [
        {"ifname": f"eth{n}", "addr_info": [{"local": each.split("/")[0], "prefixlen": int(each.split("/")[1])}]}
        for n, each in enumerate(addresses)
    ]
    monkeypatch.setattr(network, "run", lambda argv: json.dumps([*links, {"ifname": "down", "addr_info": []}]))


def test_the_name_of_a_bridge_fits_the_kernel() -> None:
    assert network.bridge_name("lab-1a2b") == "vn-lab-1a2b"
    assert len(network.bridge_name("twelve-chars")) == 15


def test_a_lab_gets_the_same_free_subnet_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, "127.0.0.1/8", "192.168.1.5/24")
    first = network.free_subnet("lab-1a2b")
    assert first == network.free_subnet("lab-1a2b")
    assert first.startswith("10.213.")
    assert first.endswith(".0/24")
    assert network.free_subnet("lab-1a2c") != first


def test_a_subnet_that_is_in_use_is_passed_over_however_wide(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch)
    wanted = network.free_subnet("lab")
    use(monkeypatch, f"{network.address(wanted, 1)}/24")
    following = network.free_subnet("lab")
    assert following != wanted
    use(monkeypatch, f"{network.address(wanted, 1)}/17")
    assert not ipaddress.ip_network(network.free_subnet("lab")).overlaps(
        ipaddress.ip_network(f"{network.address(wanted, 0)}/17", strict=False)
    )


def test_the_search_starts_again_at_the_beginning_of_the_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, *(f"10.213.{n}.1/24" for n in range(1, 256)))
    assert network.free_subnet("lab") == "10.213.0.0/24"


def test_a_full_pool_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, "10.213.0.1/16")
    with pytest.raises(LabError, match="lab down"):
        network.free_subnet("lab")


def test_addresses_are_counted_from_the_network() -> None:
    assert network.address("10.213.7.0/24", 1) == "10.213.7.1"
    assert network.address("10.213.7.0/24", 211) == "10.213.7.211"
