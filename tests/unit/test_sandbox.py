"""The sandbox around containers, and how a node's listeners are told apart."""

from __future__ import annotations

import pytest

from tests.hardening import Rights, beyond_loopback, container_problems
from vllm_node.sandbox import CONTAINER, LOOPBACK, container_sandbox


def test_who_speaks_to_its_node_only_gets_no_other_addresses() -> None:
    assert container_sandbox("loopback").splitlines() == [*CONTAINER, *LOOPBACK]
    assert container_sandbox("network").splitlines() == [*CONTAINER]
    with pytest.raises(ValueError, match="loopback or network, not 'lan'"):
        container_sandbox("lan")


def test_listeners_beyond_loopback_are_told_by_their_address() -> None:
    lines = [
        f"LISTEN 0 128 {address} peer:*"
        for address in (
            *("127.0.0.1:8000", "127.0.0.53%lo:53", "[::1]:9093", "[::ffff:127.0.0.1]:9100"),
            *("0.0.0.0:22", "*:9090", "[::]:8443", "10.0.0.5:3000"),
        )
    ]
    assert beyond_loopback("\n".join(lines)) == {22, 9090, 8443, 3000}


CLOSED = {
    "Name": "grafana",
    "EffectiveCaps": None,
    "BoundingCaps": None,
    "Config": {"User": "472:0"},
    "Mounts": [{"Type": "volume", "Destination": "/var/lib/grafana", "RW": True}],
    "HostConfig": {
        "ReadonlyRootfs": True,
        "Privileged": False,
        "SecurityOpt": ["no-new-privileges"],
        "PidMode": "private",
        "UTSMode": "private",
        "IpcMode": "shareable",
    },
}
BIND = {"Type": "bind", "Source": "/etc", "Destination": "/var/lib/grafana", "RW": True}


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"EffectiveCaps": ["CAP_CHOWN"]}, "EffectiveCaps is"),
        ({"BoundingCaps": ["CAP_CHOWN"]}, "BoundingCaps is"),
        ({"Config": {"User": "0:0"}}, "User is 0:0"),
        ({"Mounts": []}, "writable is []"),
        ({"Mounts": [BIND]}, "may write to /etc"),
        *(
            ({"HostConfig": CLOSED["HostConfig"] | {key: value}}, f"{key} is")  # type: ignore[operator]
            for key, value in (
                *(("ReadonlyRootfs", False), ("Privileged", True), ("SecurityOpt", ["no-new-privileges", "label=disable"])),
                *(("PidMode", "host"), ("IpcMode", "host"), ("UTSMode", "host")),
            )
        ),
        ({"HostConfig": CLOSED["HostConfig"] | {"SecurityOpt": []}}, "no-new-privileges is False"),  # type: ignore[operator]
    ],
)
def test_a_container_that_is_open_somewhere_is_told(changed: dict[str, object], said: str) -> None:
    rights = Rights("472:0", ("/var/lib/grafana",))
    assert list(container_problems(CLOSED, rights)) == []
    found = list(container_problems(CLOSED | changed, rights))
    assert len(found) == 1
    assert said in found[0]
