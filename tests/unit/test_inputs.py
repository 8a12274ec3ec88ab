"""Variables against argument specifications, on a roles tree of the test's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.node_code import ROOT
from vllm_node import inputs
from vllm_node.preflight.wanted import Limits

PROMETHEUS = """
argument_specs:
  main:
    options:
      prometheus_enabled: {type: bool, default: true}
      prometheus_port: {type: int, default: 9091}
      prometheus_mode: {type: str, choices: [agent, server], default: server}
      prometheus_password: {type: str, required: true}
  verify:
    options:
      prometheus_verify_only: {type: str}
"""
VLLM = """
argument_specs:
  main:
    options:
      vllm_instances:
        type: list
        elements: dict
        options:
          name: {type: str, required: true}
          port: {type: int, required: true}
          args: {type: dict, default: {}}
"""


@pytest.fixture
def specs(tmp_path: Path) -> dict[str, dict[str, Any]]:
    for role, text in (("prometheus", PROMETHEUS), ("vllm", VLLM)):
        path = tmp_path / role / "meta/argument_specs.yml"
        path.parent.mkdir(parents=True)
        path.write_text(text)
    (tmp_path / "quadlet/meta").mkdir(parents=True)
    return inputs.load_specs(tmp_path)


GOOD = {"prometheus_password": "s3cret", "vllm_instances": [{"name": "a", "port": 8000, "args": {"any": 1}}]}


def found(
    specs: dict[str, dict[str, Any]], values: dict[str, Any], **more: Any
) -> list[tuple[str, str, str]]:
    return [(each.id, each.seen, each.mend) for each in inputs.check(values, specs, **more)]


def test_only_the_main_entry_point_is_read(specs: dict[str, dict[str, Any]]) -> None:
    assert set(specs) == {"prometheus", "vllm"}
    assert "prometheus_verify_only" not in inputs.names(specs)


def test_good_values_pass(specs: dict[str, dict[str, Any]]) -> None:
    assert found(specs, GOOD) == []


def test_numbers_as_text_pass_as_ansible_would_take_them(specs: dict[str, dict[str, Any]]) -> None:
    assert found(specs, {**GOOD, "prometheus_port": "9095"}) == []


@pytest.mark.parametrize(
    "values",
    [
        {"prometheus_port": "soon"},
        {"prometheus_mode": "cluster"},
        {"vllm_instances": "llama"},
        {"vllm_instances": [{"name": "a", "port": "x"}]},
        {"vllm_instances": [{"name": "a", "port": 1, "args": "--x"}]},
    ],
)
def test_wrong_types_are_told(specs: dict[str, dict[str, Any]], values: dict[str, Any]) -> None:
    (first, *rest) = found(specs, {**GOOD, **values})
    assert first[0] == "input.type"
    assert next(iter(values)) in first[1]
    assert rest == []


def test_missing_values_are_told(specs: dict[str, dict[str, Any]]) -> None:
    (first,) = found(specs, {})
    assert first[0] == "input.missing"
    assert "prometheus_password" in first[1]


def test_missing_keys_of_a_list_are_told(specs: dict[str, dict[str, Any]]) -> None:
    (first,) = found(specs, {**GOOD, "vllm_instances": [{"name": "a"}]})
    assert first[0] == "input.missing"
    assert "port" in first[1]


def test_a_component_that_is_off_needs_nothing(specs: dict[str, dict[str, Any]]) -> None:
    assert found(specs, {"prometheus_enabled": False}) == []


def test_unknown_keys_get_a_guess(specs: dict[str, dict[str, Any]]) -> None:
    (first,) = found(specs, {**GOOD, "vllm_instances": [{"name": "a", "port": 1, "arg": {}}]})
    assert first == ("input.unknown", "vllm_instances[a] has the unknown key arg", "Did you mean args?")


def test_unknown_variables_get_a_guess(specs: dict[str, dict[str, Any]]) -> None:
    (first,) = found(specs, GOOD, defined=["prometheus_prot"])
    assert first == (
        "input.unknown",
        "no role knows the variable prometheus_prot",
        "Did you mean prometheus_port?",
    )


def test_unknown_variables_without_a_likeness_name_the_prefix(specs: dict[str, dict[str, Any]]) -> None:
    (first,) = found(specs, GOOD, defined=["vllm_where_models_are"])
    assert first[0] == "input.unknown"
    assert "vllm_" in first[2]


def test_a_misspelt_prefix_is_only_a_warning(specs: dict[str, dict[str, Any]]) -> None:
    (first,) = inputs.check(GOOD, specs, defined=["promethues_port"], host="gpu1")
    assert (first.id, first.level, first.host) == ("input.unknown", "warn", "gpu1")
    assert first.mend == "Did you mean prometheus_port?"


def test_other_variables_are_nobodys_business(specs: dict[str, dict[str, Any]]) -> None:
    others = [
        "ansible_host",
        "site_name",
        "_vllm_internal",
        "prometheus_port",
        "vllm_start_result",
        "groups",
        "omit",
    ]
    assert found(specs, GOOD, defined=others) == []


def test_templates_that_cannot_be_resolved_are_told_once(specs: dict[str, dict[str, Any]]) -> None:
    values = {"vllm_instances": GOOD["vllm_instances"]}
    (first,) = found(specs, values, undefined={"prometheus_password": "'vault_x' is undefined"})
    assert first[0] == "input.missing"
    assert "vault_x" in first[1]


def test_secrets_never_stand_in_a_finding(specs: dict[str, dict[str, Any]]) -> None:
    specs["prometheus"]["prometheus_password"]["choices"] = ["other"]
    (first,) = found(specs, GOOD)
    assert first[0] == "input.type"
    assert "s3cret" not in str(first)


def test_defaults_of_the_specs_fill_the_gaps(specs: dict[str, dict[str, Any]]) -> None:
    filled = inputs.with_defaults({"prometheus_port": 1}, specs)
    assert filled == {"prometheus_port": 1, "prometheus_enabled": True, "prometheus_mode": "server"}


def test_a_broken_spec_names_its_file(tmp_path: Path) -> None:
    path = tmp_path / "x/meta/argument_specs.yml"
    path.parent.mkdir(parents=True)
    path.write_text("argument_specs: {verify: {}}")
    with pytest.raises(ValueError, match=r"x/meta/argument_specs\.yml"):
        inputs.load_specs(tmp_path)


@pytest.mark.parametrize("role", ["node_snapshot", "preflight"])
def test_defaults_and_specs_of_our_roles_agree(role: str) -> None:
    defaults = yaml.safe_load((ROOT / "roles" / role / "defaults/main.yml").read_text())
    spec = inputs.load_specs(ROOT / "roles")[role]
    assert {name: option["default"] for name, option in spec.items()} == defaults


def test_thresholds_and_the_judges_own_defaults_agree() -> None:
    spec = inputs.load_specs(ROOT / "roles")["preflight"]
    for name, option in spec.items():
        own = getattr(Limits(), name.removeprefix("preflight_"))
        assert (list(own) if isinstance(own, tuple) else own) == option["default"], name


@pytest.mark.parametrize("port", [float("inf"), [2**63, None, None]])
def test_a_number_beyond_all_numbers_has_the_wrong_form(specs: dict[str, dict[str, Any]], port: Any) -> None:
    (found,) = inputs.check({**GOOD, "prometheus_port": port}, specs)
    assert (found.id, found.seen) == (
        "input.type",
        "role prometheus: prometheus_port has a value of the wrong form (OverflowError)",
    )


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8) | st.integers(), inner, max_size=3)
    ),
    max_leaves=6,
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(value=ANYTHING, name=st.sampled_from(["vllm_instances", "prometheus_port", "prometheus_password"]))
def test_no_value_breaks_the_check(specs: dict[str, dict[str, Any]], name: str, value: Any) -> None:
    inputs.check({**GOOD, name: value}, specs)
