"""What preflight says of the gateway's variables before a node is touched."""

from __future__ import annotations

import datetime
import functools
from pathlib import Path
from typing import Any

import pytest

from tests.unit.role_code import ROOT
from vllm_node import gateway_inputs, inputs
from vllm_node.gateway import certificates
from vllm_node.lab import pki
from vllm_node.plugins.filter.gateway import gateway_clients_file
from vllm_node.preflight import wanted_from
from vllm_node.render import PLACEHOLDER, judge_inputs

KEY = "k" * 40
NOW = datetime.datetime.now(datetime.UTC)


@functools.cache
def defaults() -> dict[str, Any]:
    return inputs.with_defaults({}, inputs.load_specs(ROOT / "roles"))


def site(**changed: Any) -> dict[str, Any]:
    known = {
        "gateway_enabled": True,
        "gateway_clients": [{"name": "app", "key": KEY}],
        "vllm_instances": [{"name": "a", "model": "/m", "gpus": [], "port": 8000, "served_model_name": "chat"}],
    }
    return {**defaults(), **known, **changed}


def found(**changed: Any) -> list[tuple[str, str, str]]:
    return [(one.id, one.level, one.seen) for one in gateway_inputs.check(site(**changed))]


def test_a_sound_site_has_nothing_to_mend() -> None:
    assert found() == []


def test_a_gateway_that_is_off_is_not_judged() -> None:
    assert found(gateway_enabled=False, gateway_clients=[{"name": "A", "key": "x"}], gateway_max_body="?") == []


SETTINGS: list[tuple[dict[str, Any], str]] = [
    ({"gateway_paths": ["/metrics"]}, "/metrics is no path below /v1"),
    ({"gateway_paths": ["/v1"]}, "/v1 is no path"),
    ({"gateway_paths": ["/v1/../metrics"]}, "is no path"),
    ({"gateway_paths": ["/v1/a; return 200"]}, "is no path"),
    ({"gateway_paths": ["/v1/load_lora_adapter"]}, "is no path"),
    ({"gateway_paths": ["/v1/models"]}, "is no path"),
    ({"gateway_paths": ["/v1/a", "/v1/a"]}, "/v1/a is there 2 times"),
    ({"gateway_max_body": "32 m"}, "a number with k or m"),
    ({"gateway_max_body": "1g"}, "a number with k or m"),
    ({"gateway_max_body": "0"}, "a number with k or m"),
    ({"gateway_workers": 0}, "gateway_workers is 0"),
    ({"gateway_connections": -1}, "gateway_connections is -1"),
    ({"gateway_answer_timeout_s": 0}, "gateway_answer_timeout_s is 0"),
    ({"gateway_listen_address": "everywhere"}, "gateway_listen_address is everywhere"),
    ({"gateway_listen_address": "::"}, "one of IPv6 in brackets"),
    ({"gateway_port": 8444}, "are the same"),
    ({"gateway_server_names": ["a b"]}, "neither a name nor an address"),
    ({"gateway_allowed_sources": ["10.0.0.0/33"]}, "gateway_allowed_sources"),
    ({"gateway_allowed_sources": ["10.0.0.1/8"]}, "host bits"),
]


@pytest.mark.parametrize(("changed", "said"), SETTINGS)
def test_a_setting_that_cannot_be(changed: dict[str, Any], said: str) -> None:
    ((check, level, seen),) = found(**changed)
    assert (check, level) == ("inputs.gateway", "fail")
    assert said in seen


@pytest.mark.parametrize(
    "changed",
    [
        {"gateway_listen_address": "[::]"},
        {"gateway_listen_address": "10.0.0.5"},
        {"gateway_server_names": ["llm.site.example", "10.0.0.5", "[fd00::1]"]},
        {"gateway_allowed_sources": ["10.0.0.0/8", "fd00::/8"]},
        {"gateway_paths": ["/v1/chat/completions", "/v1/audio/speech"]},
    ],
)
def test_a_setting_that_can_be(changed: dict[str, Any]) -> None:
    assert found(**changed) == []


CLIENTS: list[tuple[list[dict[str, Any]], str]] = [
    ([{"name": "a", "key": KEY}, {"name": "a", "key": "j" * 40}], "the name a is there 2 times"),
    ([{"name": "A", "key": KEY}], "'A' cannot be a name"),
    ([{"name": 'x"; return 200 "', "key": KEY}], "cannot be a name"),
    ([{"name": "a", "key": KEY}, {"name": "b", "key": KEY}], "a and b have the same key"),
    ([{"name": "a", "key": "short"}], "[a]: its key has 5 characters"),
    ([{"name": "a"}], "[a]: it needs a key or a key_sha256"),
    ([{"name": "a", "key": KEY, "connections": 0}], "[a]: connections is 0"),
    ([{"name": "a", "key": KEY, "requests_per_minute": -1}], "[a]: requests_per_minute is -1"),
]


@pytest.mark.parametrize(("clients", "said"), CLIENTS)
def test_a_client_that_cannot_be(clients: list[dict[str, Any]], said: str) -> None:
    ((check, level, seen),) = found(gateway_clients=clients)
    assert (check, level) == ("inputs.gateway-clients", "fail")
    assert said in seen
    assert KEY not in seen


def test_nobody_to_let_in_and_a_model_that_is_not_there_are_worth_a_word() -> None:
    assert [one[:2] for one in found(gateway_clients=[])] == [("inputs.gateway-clients", "warn")]
    ((check, level, seen),) = found(gateway_clients=[{"name": "app", "key": KEY, "models": ["chat", "chad"]}])
    assert (check, level) == ("inputs.gateway-models", "warn")
    assert "may use chad; this node serves chat" in seen


def test_without_the_vault_names_are_judged_and_no_key_is_rendered() -> None:
    clients = [{"name": "a", "key": "{{ vault_a }}"}, {"name": "b", "key": "{{ vault_b }}"}]
    variables = {**site(), "gateway_clients": clients}
    judged = judge_inputs("node", variables, lambda value: value, ROOT / "roles")
    assert [one for one in judged.findings if one.id.startswith("inputs.gateway")] == []
    hidden = judged.placeholders["gateway_clients"]
    assert [one["key"] for one in hidden] == [PLACEHOLDER] * 2
    assert '"a"' in gateway_clients_file(hidden)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pki")
    pki.make(folder, "llm.site.example", "*.wild.example", "10.0.0.5")
    pki.make(folder / "other", "llm.site.example")
    return folder


def certificate(made: Path, key: str = "server.key", **changed: Any) -> list[tuple[str, str]]:
    texts = {"gateway_tls_certificate": (made / "server.crt").read_text(), "gateway_tls_key": (made / key).read_text()}
    given = found(**{**texts, **changed})
    assert {check for check, _, _ in given} <= {"inputs.gateway-certificate"}
    assert "PRIVATE KEY" not in str(given)
    return [(level, seen) for _, level, seen in given]


def test_a_certificate_that_is_good_for_its_names(made: Path) -> None:
    names = ["llm.site.example", "LLM.site.example", "a.wild.example", "10.0.0.5"]
    assert certificate(made, gateway_server_names=names) == []


@pytest.mark.parametrize("name", ["other.example", "a.b.wild.example", "wild.example", "10.0.0.6"])
def test_a_certificate_for_another_name(made: Path, name: str) -> None:
    ((level, seen),) = certificate(made, gateway_server_names=[name, "llm.site.example"])
    assert level == "fail"
    assert seen.endswith(f"not for {name}")


def test_a_key_of_another_certificate(made: Path) -> None:
    ((level, seen),) = certificate(made, key="other/server.key")
    assert (level, "is not the key of" in seen) == ("fail", True)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"gateway_tls_key": ""}, "gateway_tls_key is empty"),
        ({"gateway_tls_certificate": ""}, "gateway_tls_certificate is empty"),
        ({"gateway_tls_certificate": "x"}, "no certificate in PEM"),
        ({"gateway_tls_key": "x"}, "no key in PEM"),
    ],
)
def test_half_a_certificate_and_none_at_all(made: Path, changed: dict[str, Any], said: str) -> None:
    ((level, seen),) = certificate(made, **changed)
    assert (level, said in seen) == ("fail", True)


def test_a_key_in_a_closed_vault_is_not_judged(made: Path) -> None:
    assert certificate(made, gateway_tls_key=PLACEHOLDER) == []


@pytest.mark.parametrize(
    ("days", "said"),
    [(-1, "is not valid before"), (100, None), (334, None), (336, "expires on"), (366, "has expired")],
)
def test_the_time_that_is_left(made: Path, days: int, said: str | None) -> None:
    now = NOW + datetime.timedelta(days=days)
    told = list(certificates.complaints((made / "server.crt").read_text(), None, [], now))
    assert [one.text for one in told if said and said in one.text] == [one.text for one in told]
    assert len(told) == (1 if said else 0)
    assert [one.stops for one in told] == ([] if said is None else [said != "expires on"])


def test_its_ports_and_its_image_are_wanted_where_it_is_on() -> None:
    on = wanted_from("node", site())
    assert {(port.number, port.variable) for port in on.ports if port.unit == "gateway.service"} == {
        (8443, "gateway_port"),
        (8444, "gateway_status_port"),
    }
    assert on.image_users["gateway"] == "role gateway"
    off = wanted_from("node", site(gateway_enabled=False))
    assert "gateway" not in off.image_users
    assert "gateway.service" not in {port.unit for port in off.ports}
