"""What of instances and clients goes into the gateway's files: names of models, groups of replicas, limits, hashes."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest

from vllm_node.gateway import keys, plan

KEY = "k" * 43


def instance(name: str, port: int, **more: Any) -> dict[str, Any]:
    return {"name": name, "port": port, **more}


@pytest.mark.parametrize(
    ("more", "names"),
    [
        ({}, ["a"]),
        ({"served_model_name": "chat"}, ["chat"]),
        ({"served_model_name": "chat", "args": {"served-model-name": ["one", "two"]}}, ["one", "two"]),
        ({"args": {"served_model_name": "one"}}, ["one"]),
        ({"args": {"lora-modules": "x=/srv/x"}}, ["a", "x"]),
        ({"args": {"lora-modules": ["x=/srv/x", {"name": "y", "path": "/srv/y"}, '{"name": "z", "path": "/z"}']}}, ["a", "x", "y", "z"]),
        ({"args": {"lora-modules": {"name": "y", "path": "/srv/y"}}}, ["a", "y"]),
        ({"args": {"lora-modules": ["a=/srv/a"]}}, ["a"]),
        ({"args": None}, ["a"]),
    ],
)
def test_names_of_an_instance(more: dict[str, Any], names: list[str]) -> None:
    assert plan.model_names(instance("a", 1, **more)) == names


def test_instances_with_the_same_models_are_one_group() -> None:
    instances = [
        instance("b", 8001, served_model_name="chat", args={"lora-modules": "x=/x"}),
        instance("a", 8000, served_model_name="chat", args={"lora-modules": "x=/x"}),
        instance("c", 8002),
    ]
    made = plan.plan(instances, [], 512)
    assert made["upstreams"] == [
        {"name": "instances_8000_8001", "ports": [8000, 8001]},
        {"name": "instances_8002", "ports": [8002]},
    ]
    assert json.loads(plan.routes(instances)) == {
        "models": [
            {"name": "c", "upstream": "instances_8002"},
            {"name": "chat", "upstream": "instances_8000_8001"},
            {"name": "x", "upstream": "instances_8000_8001"},
        ],
        "ports": [8000, 8001, 8002],
    }


def test_a_limit_is_there_once_for_each_number_and_names_its_clients() -> None:
    clients = [
        {"name": "b", "requests_per_minute": 60},
        {"name": "a", "requests_per_minute": 60, "connections": 4},
        {"name": "c", "requests_per_minute": 3},
    ]
    limits = {one["rule"]: one["clients"] for one in plan.plan([], clients, 512)["limits"]}
    assert limits == {
        "limit_conn gateway_connections_4 4;": ["a"],
        "limit_conn gateway_connections_512 512;": ["b", "c"],
        "limit_req zone=gateway_rate_3 burst=1 nodelay;": ["c"],
        "limit_req zone=gateway_rate_60 burst=10 nodelay;": ["a", "b"],
    }


def test_without_clients_there_is_nothing_to_limit() -> None:
    assert plan.plan([instance("a", 1)], [], 512)["limits"] == []


def test_the_file_of_clients_has_hashes_and_no_key() -> None:
    other = hashlib.sha256(b"other").hexdigest()
    text = keys.table([{"name": "b", "key": KEY, "models": ["m"]}, {"name": "a", "key_sha256": other}])
    assert KEY not in text
    assert json.loads(text) == {
        "keys": {other: "a", hashlib.sha256(KEY.encode()).hexdigest(): "b"},
        "models": {"a": None, "b": ["m"]},
    }


def test_the_order_of_the_inventory_does_not_matter() -> None:
    clients = [{"name": name, "key": name * 40} for name in "abc"]
    assert keys.table(clients) == keys.table(clients[::-1])


@pytest.mark.parametrize(
    ("client", "said"),
    [
        ({}, "one of the two"),
        ({"key": KEY, "key_sha256": "0" * 64}, "one of the two"),
        ({"key_sha256": "0" * 63}, "64 hexadecimal digits"),
        ({"key_sha256": "A" * 64}, "64 hexadecimal digits"),
        ({"key": "k" * 31}, "31 characters; 32 to 256 are wanted"),
        ({"key": "k" * 257}, "257 characters"),
        ({"key": "k" * 31 + " "}, "a space"),
        ({"key": "k" * 31 + "ä"}, "a header cannot carry"),
        ({"key": "k" * 32 + "\n"}, "a header cannot carry"),
    ],
)
def test_a_key_that_cannot_be_is_refused_and_not_shown(client: dict[str, str], said: str) -> None:
    with pytest.raises(ValueError, match=said) as caught:
        keys.known_by({"name": "a", **client})
    assert "kkkk" not in str(caught.value)


def test_fresh_keys_will_do_and_differ() -> None:
    made = {keys.fresh() for _ in range(50)}
    assert len(made) == 50
    for key in made:
        assert keys.known_by({"key": key}) == keys.digest(key)
