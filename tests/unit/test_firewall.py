"""The firewall: what a snapshot reads of it, what preflight says, and rules that are made and taken back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.factories import changed, ids, judged, snapshot, variables
from tests.unit.node_code import utils
from tests.unit.role_code import answers, calls, load, manifest_code, on_path, program, run_module, shared_code

firewall = utils("snapshot_firewall")
FOUND = """\
table inet firewalld {
\tchain filter_INPUT {
\t\ttype filter hook input priority filter + 10; policy accept;
\t\tct state { established, related } accept
\t\tjump filter_INPUT_POLICIES
\t}

\tchain filter_INPUT_POLICIES {
\t\treject with icmpx admin-prohibited
\t}
}
table inet netavark {
\tchain INPUT {
\t\ttype filter hook input priority filter; policy accept;
\t\tip saddr 10.88.0.0/16 th dport 53 accept
\t}
}
table ip filter {
\tchain INPUT {
\t\ttype filter hook input priority filter; policy drop;
\t}
\tchain FORWARD {
\t\ttype filter hook forward priority filter; policy drop;
\t}
}
"""
ZONES = """\
drop
  target: DROP
  ingress-priority: 0
  interfaces: 
  ports: 
  rich rules: 

public (default, active)
  target: default
  interfaces: eth0 eth1
  sources: 
  services: dhcpv6-client ssh
  ports: 8443/tcp 9000-9100/tcp
  forward: yes
  rich rules: 
\trule family="ipv4" source address="10.0.0.0/8" port port="8443" protocol="tcp" accept
"""  # noqa: W291 - as firewall-cmd prints it
ROUTE = """\
Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT
ib0\t00000000\t0100000A\t0003\t0\t0\t200\t00000000\t0\t0\t0
eth0\t00000000\t0100000A\t0003\t0\t0\t100\t00000000\t0\t0\t0
eth1\t0000000A\t00000000\t0001\t0\t0\t0\t000000FF\t0\t0\t0
"""
ZERO = "0" * 32
ROUTE_6 = f"""\
{ZERO} 00 {ZERO} 00 {ZERO} ffffffff 00000001 00000000 00200200       lo
{ZERO} 00 {ZERO} 00 fe800000000000000000000000000001 00000400 00000001 00000000 00000003     ens3
"""


def test_ruleset_hash_is_blind_to_what_moves() -> None:
    first = "table ip x {\n chain c {\n counter packets 5 bytes 300 accept # handle 3\n }\n}\n"
    second = "table ip x {\n chain c {\n counter packets 9 bytes 900 accept # handle 7\n }\n}\n"
    assert firewall.ruleset_hash(first) == firewall.ruleset_hash(second)
    assert firewall.ruleset_hash(first) != firewall.ruleset_hash(first.replace("accept", "drop"))


def test_chains_that_can_refuse_what_comes_in_are_found() -> None:
    assert firewall.input_chains(FOUND) == ["inet firewalld filter_INPUT", "ip filter INPUT"]
    assert firewall.input_chains("") == []


def test_zones_are_read_as_firewalld_lists_them() -> None:
    zones = firewall.parse_zones(ZONES)
    assert zones["public"] == {
        "target": "default",
        "interfaces": ["eth0", "eth1"],
        "services": ["dhcpv6-client", "ssh"],
        "ports": ["8443/tcp", "9000-9100/tcp"],
    }
    assert zones["drop"] == {"target": "DROP", "interfaces": [], "services": [], "ports": []}


def test_the_default_route_is_the_one_of_the_lowest_metric() -> None:
    assert firewall.default_interface(ROUTE, ROUTE_6) == "eth0"
    assert firewall.default_interface(None, ROUTE_6) == "ens3"
    assert firewall.default_interface("", "") is None


@given(st.text())
def test_garbage_breaks_no_parser(text: str) -> None:
    firewall.ruleset_hash(text)
    firewall.input_chains(text)
    firewall.parse_zones(text)
    firewall.default_interface(text, text)


OPEN: dict[str, Any] = {
    "gateway_enabled": True,
    "gateway_listen_address": "0.0.0.0",
    "gateway_port": 8443,
    "gateway_allowed_sources": ["10.0.0.0/8", "fd00::/8"],
}
OWN = {"firewall/firewalld": "inactive", "firewall/zones": None, "firewall/zone": None}


def told(node: dict[str, Any] | None = None, **site: Any) -> dict[str, str]:
    """Findings about the firewall with their levels; `node` has what is changed on it."""
    seen = snapshot()
    for path, value in (node or {}).items():
        seen = changed(seen, path, value)
    found = ids(seen, {**variables(), **OPEN, **site})
    return {name: level for name, level in found.items() if name.startswith("firewall.")}


def test_a_zone_that_is_there_and_closed_is_nothing_to_speak_of() -> None:
    assert told() == {}
    assert told(firewall_zone="trusted") == {"firewall.open": "warn"}


@pytest.mark.parametrize(
    ("node", "site", "found"),
    [
        ({}, {"firewall_zone": "dmz"}, {"firewall.zone": "fail"}),
        ({}, {"gateway_allowed_sources": []}, {"firewall.closed": "warn"}),
        ({"firewall/zones/public/ports": ["8000-9000/tcp"]}, {}, {"firewall.open": "warn"}),
        ({"firewall/zones/public/ports": ["8443/udp", "8444/tcp"]}, {}, {}),
        ({**OWN, "firewall/input_chains": ["inet filter input"]}, {}, {"firewall.unmanaged": "warn"}),
        ({**OWN, "firewall/input_chains": []}, {}, {"firewall.absent": "warn"}),
        ({**OWN, "firewall/input_chains": []}, {"gateway_allowed_sources": []}, {}),
        ({**OWN, "firewall/input_chains": None}, {}, {}),
    ],
)
def test_what_the_firewall_will_do_is_told(node: dict[str, Any], site: dict[str, Any], found: dict[str, str]) -> None:
    assert told(node, **site) == found


@pytest.mark.parametrize(
    "site",
    [{"gateway_enabled": False}, {"gateway_listen_address": "127.0.0.1"}, {"gateway_listen_address": "[::1]"}],
)
def test_without_a_door_there_is_nothing_to_say(site: dict[str, Any]) -> None:
    broken = {**OWN, "firewall/input_chains": ["inet filter input"]}
    assert told(broken, **site, firewall_zone="dmz") == {}
    assert told(broken, firewall_enabled=False) == {}


def test_the_lines_for_a_foreign_firewall_fit_its_chains() -> None:
    node = snapshot()
    for path, value in {**OWN, "firewall/input_chains": ["inet site in", "ip filter INPUT"]}.items():
        node = changed(node, path, value)
    (finding,) = [one for one in judged(node, {**variables(), **OPEN}) if one.id == "firewall.unmanaged"]
    lines = finding.mend.partition("rules: ")[2].split("; ")
    assert lines == [
        "nft insert rule inet site in ip saddr 10.0.0.0/8 tcp dport 8443 accept",
        "nft insert rule inet site in ip6 saddr fd00::/8 tcp dport 8443 accept",
        "iptables -I INPUT -s 10.0.0.0/8 -p tcp --dport 8443 -j ACCEPT",
    ]


RULE = 'rule family="ipv4" source address="10.0.0.0/8" port port="8443" protocol="tcp" accept'
SHIPPED = '<?xml version="1.0"?>\n<zone><short>Public</short><service name="ssh"/><!-- a --></zone>\n'
REWRITTEN = '<zone>\n  <service name="ssh"/>\n  <short>Public</short>\n</zone>\n'


class Node:
    """A node with firewalld, in a folder; its firewall-cmd answers as the test says."""

    def __init__(self, root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        self.root, self.capsys, self.programs, self.state = root, capsys, root / "bin", root / "state"
        self.zones = shared_code("firewall_zones")
        for name in ("CONFIG", "SHIPPED"):
            (root / name).mkdir()
            monkeypatch.setattr(self.zones, name, str(root / name))
        (root / "SHIPPED/public.xml").write_text(SHIPPED)
        self.module = load("roles/firewall/library/firewall_rules.py")
        self.firewalld()

    def firewalld(self, runtime: str = "", permanent: str = "", add: int = 0, remove: int = 0) -> None:
        table = {
            "--zone=public --list-rich-rules": (0, runtime),
            "--permanent --zone=public --list-rich-rules": (0, permanent),
            "--zone=public --add-rich-rule": (add, "told"),
            "--permanent --zone=public --add-rich-rule": (add, "told"),
            "--zone=public --remove-rich-rule": (remove, "told"),
            "--permanent --zone=public --remove-rich-rule": (remove, "told"),
        }
        program(self.programs, "firewall-cmd", answers(table))
        program(self.programs, "firewall-offline-cmd")

    def wants(self, *sources: str, check: bool = False) -> dict[str, Any]:
        arguments = {"state_dir": str(self.state), "zone": "public", "port": 8443, "sources": list(sources)}
        return run_module(self.module, self.capsys, **arguments, _ansible_check_mode=check)

    def teardown(self) -> dict[str, Any]:
        down = load("roles/teardown/library/node_teardown.py")
        down.STORAGE, down.RUNTIME = str(self.root / "storage"), str(self.root / "run")
        return run_module(down, self.capsys, state_dir=str(self.state), target="vllm-node.target")

    def changes(self) -> list[str]:
        """Words of each call that changes something."""
        lines = [" ".join(call[1:]) for call in calls(self.programs, "firewall-cmd")]
        return [line for line in lines if "list-rich-rules" not in line]

    @property
    def noted(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.state / "manifest.json").read_text())["firewall"]
        return found


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Node:
    on_path(monkeypatch, tmp_path / "bin")
    monkeypatch.setattr("os.fsync", lambda _: None)
    program(tmp_path / "bin", "systemctl")
    return Node(tmp_path, capsys, monkeypatch)


def test_a_rule_is_made_in_what_runs_and_in_what_is_kept_without_a_reload(node: Node) -> None:
    assert node.wants("10.0.0.0/8")["changed"] is True
    assert node.changes() == [
        f"--permanent --zone=public --add-rich-rule={RULE}",
        f"--zone=public --add-rich-rule={RULE}",
    ]
    assert node.noted["rules"] == [["public", "runtime", RULE], ["public", "permanent", RULE]]


def test_a_rule_is_on_record_before_it_is_made(node: Node) -> None:
    node.firewalld(add=13)
    assert node.wants("10.0.0.0/8")["msg"] == "firewall: firewall-cmd: told"
    assert len(node.noted["rules"]) == 2


def test_what_is_there_stays_the_sites_and_a_second_run_changes_nothing(node: Node) -> None:
    node.firewalld(runtime=RULE, permanent=RULE)
    assert node.wants("10.0.0.0/8")["changed"] is False
    assert not (node.state / "manifest.json").exists()
    node.firewalld(runtime=RULE)
    assert node.wants("10.0.0.0/8")["changed"] is True
    assert node.noted["rules"] == [["public", "permanent", RULE]]
    node.firewalld(runtime=RULE, permanent=RULE)
    before = node.changes()
    assert node.wants("10.0.0.0/8")["changed"] is False
    assert node.changes() == before


def test_a_trial_says_what_would_be_and_does_nothing(node: Node) -> None:
    told = node.wants("10.0.0.0/8", check=True)
    assert told["changes"] == [f"added to zone public ({where}): {RULE}" for where in ("runtime", "permanent")]
    assert node.changes() == []
    assert not node.state.exists()


def test_a_source_that_is_no_longer_wanted_goes_first(node: Node) -> None:
    node.wants("10.0.0.0/8")
    node.firewalld(runtime=RULE, permanent=RULE)
    node.wants("192.0.2.0/24")
    removed, added = [[words.split("--")[-1][:4] for words in part] for part in (node.changes()[2:4], node.changes()[4:])]
    assert (removed, added) == (["remo", "remo"], ["add-", "add-"])
    assert all("192.0.2.0/24" in rule for _, _, rule in node.noted["rules"])


def test_a_wrong_network_is_refused_before_anything_is_done(node: Node) -> None:
    assert "host bits" in node.wants("10.0.0.1/8")["msg"]
    assert node.changes() == []


def test_a_teardown_takes_exactly_our_rules_and_brings_the_zones_files_back(node: Node) -> None:
    node.wants("10.0.0.0/8")
    for name in ("public.xml", "public.xml.old"):
        (node.root / "CONFIG" / name).write_text(REWRITTEN)
    told = node.teardown()
    assert told["left"] == []
    assert told["removed"] == [f"rule of zone public ({where}): {RULE}" for where in ("runtime", "permanent")]
    assert node.changes()[-2:] == [
        f"--permanent --zone=public --remove-rich-rule={RULE}",
        f"--zone=public --remove-rich-rule={RULE}",
    ]
    assert list((node.root / "CONFIG").iterdir()) == []


def test_a_zone_of_the_sites_own_gets_its_text_back(node: Node) -> None:
    place = node.root / "CONFIG/public.xml"
    place.write_text(SHIPPED)
    node.wants("10.0.0.0/8")
    place.write_text(REWRITTEN)
    node.teardown()
    assert place.read_text() == SHIPPED


def test_a_zone_that_the_site_has_changed_since_is_left_alone(node: Node) -> None:
    node.wants("10.0.0.0/8")
    place = node.root / "CONFIG/public.xml"
    place.write_text(theirs := REWRITTEN.replace("ssh", "http"))
    node.teardown()
    assert place.read_text() == theirs


def test_a_firewalld_that_does_not_run_is_asked_through_its_files(node: Node) -> None:
    node.wants("10.0.0.0/8")
    program(node.programs, "firewall-cmd", "exit 252")
    assert node.teardown()["left"] == []
    assert calls(node.programs, "firewall-offline-cmd") == [
        ["firewall-offline-cmd", "--zone=public", f"--remove-rich-rule={RULE}"]
    ]


def test_rules_that_cannot_be_taken_back_are_told_and_stay_on_record(node: Node) -> None:
    node.wants("10.0.0.0/8")
    node.firewalld(remove=13)
    assert node.teardown()["left"] == ["rules of the firewall: firewall-cmd: told"]
    assert len(node.noted["rules"]) == 2


def test_a_zone_that_is_gone_has_taken_our_rules_with_it(node: Node) -> None:
    node.wants("10.0.0.0/8")
    node.firewalld(remove=112)
    assert node.teardown()["left"] == []


def test_a_node_of_an_earlier_version_has_no_rules(node: Node) -> None:
    manifest_code().Manifest.load(str(node.state)).save()
    assert node.teardown()["left"] == []
    assert node.changes() == []
