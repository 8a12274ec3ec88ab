"""What roles stage for a node comes together once, by scope, and two roles cannot want the same thing."""

from __future__ import annotations

from typing import Any

import pytest

from vllm_node.staging import collect, fact_name


def part(name: str, **wanted: Any) -> dict[str, Any]:
    empty: dict[str, Any] = {"files": [], "secrets": [], "volumes": [], "units": [], "checks": []}
    return {fact_name(name): {"part": name, "scope": "stack", **empty, **wanted}}


def test_a_part_travels_under_a_name_that_ansible_takes_for_a_variable() -> None:
    assert fact_name("vllm-chat-8b") == "_staged_vllm_chat_8b"
    assert fact_name("vllm-chat-8b").isidentifier()


def test_parts_of_a_scope_come_together_in_the_order_of_their_names() -> None:
    variables = {
        "inventory_hostname": "node-a",
        **part("b", files=[{"path": "/b"}], volumes=["v"], units=[{"unit": "b.service"}]),
        **part("a", files=[{"path": "/a"}], secrets=[{"name": "s", "value": "1"}]),
        **part("h", scope="host", files=[{"path": "/h"}]),
    }
    staged = collect(variables, "stack")
    assert [file["path"] for file in staged.files] == ["/a", "/b"]
    assert staged.secrets == [{"name": "s", "value": "1"}]
    assert (staged.volumes, staged.units) == (["v"], [{"unit": "b.service"}])
    assert [file["path"] for file in collect(variables, "host").files] == ["/h"]


@pytest.mark.parametrize(("kind", "key"), [("files", "path"), ("units", "unit")])
def test_two_parts_cannot_want_the_same(kind: str, key: str) -> None:
    variables = {**part("a", **{kind: [{key: "/x"}]}), **part("b", **{kind: [{key: "/x"}]})}
    with pytest.raises(ValueError, match="a and b both want /x"):
        collect(variables, "stack")


def test_a_part_cannot_want_the_same_twice() -> None:
    with pytest.raises(ValueError, match="a and a both want /x"):
        collect(part("a", files=[{"path": "/x"}, {"path": "/x"}]), "stack")


def test_a_secret_is_shared_by_parts_that_agree_and_by_no_others() -> None:
    secret = {"name": "s", "value": "1"}
    agreed = {**part("a", secrets=[secret]), **part("b", secrets=[dict(secret)])}
    assert collect(agreed, "stack").secrets == [secret]
    with pytest.raises(ValueError, match="a and b both want s"):
        collect({**part("a", secrets=[secret]), **part("b", secrets=[{"name": "s", "value": "2"}])}, "stack")


def test_the_same_path_in_two_scopes_is_not_a_quarrel() -> None:
    variables = {**part("a", files=[{"path": "/x"}]), **part("b", scope="host", files=[{"path": "/x"}])}
    assert len(collect(variables, "stack").files) == 1
