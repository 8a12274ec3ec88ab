"""Which series an expression asks for: plain PromQL, and PromQL with Grafana's variables in it."""

from __future__ import annotations

import pytest

from vllm_node.metrics.grafana import variable_query
from vllm_node.metrics.promql import Matcher, PromqlError, selectors


def names(expression: str) -> list[str | None]:
    return [each.name for each in selectors(expression)]


@pytest.mark.parametrize(
    ("expression", "found"),
    [
        ("up", ["up"]),
        ('up{job="a"} == 1 unless on (instance) vllm:num_requests_running', ["up", "vllm:num_requests_running"]),
        ('absent(up{job="vllm"}) or absent_over_time(x[5m])', ["up", "x"]),
        ("max_over_time(sum by (node) (rate(a[5m]))[6h:1m])", ["a"]),
        ("a > 5 and (b offset 10m) != bool 0", ["a", "b"]),
        ("a @ end() - -b", ["a", "b"]),
        ("vector(1)", []),
        ("topk(scalar(a), b)", ["a", "b"]),
        ("floor(DCGM_FI_DEV_CLOCKS_EVENT_REASONS / 8) % 2", ["DCGM_FI_DEV_CLOCKS_EVENT_REASONS"]),
        ('{__name__="a", x="1"}', ["a"]),
        ('{"a", x="1"}', ["a"]),
        ('{__name__=~"a.*"}', [None]),
        ("quantile_over_time(0.5, a[1h])", ["a"]),
    ],
)
def test_names_are_found(expression: str, found: list[str]) -> None:
    assert names(expression) == found


@pytest.mark.parametrize(
    "expression",
    [
        "rate(a[$__rate_interval])",
        "rate(a[${__rate_interval}])",
        "rate(a[$__interval] offset $past)",
        "sum(rate(a[[[window]]]))",
        "rate(a[$__range])[$__range:$__interval]",
        "a > $threshold",
        "topk(${count}, a)",
        "histogram_quantile($quantile, sum by (le, $group) (rate(a[5m])))",
        "sum by ($group) (a) > $threshold",
        'a{node=~"$node", x="${y:regex}", z!~"[[w]]"}',
        'label_replace(a, "to", "$1", "from", "(.*)")',
    ],
)
def test_variables_of_grafana_are_no_obstacle(expression: str) -> None:
    assert names(expression) == ["a"]


@pytest.mark.parametrize("expression", ["sum($metric)", "$metric{x='1'}", "rate(vllm:${part}_total[5m])", "$metric"])
def test_a_name_that_is_a_variable_is_not_told(expression: str) -> None:
    assert set(names(expression)) <= {None}


@pytest.mark.parametrize("expression", ["sum(", "rate(a)", "a[5m", "sum by (x) > 1", ""])
def test_what_is_no_promql_is_an_error_in_words(expression: str) -> None:
    with pytest.raises(PromqlError, match=r"\w"):
        selectors(expression)


def test_matchers_are_told_with_their_operators() -> None:
    (found,) = selectors('a{le="2.5", job!="x", node=~"$node", xid!~"13|31"}')
    assert found.matchers == (
        Matcher("le", "=", "2.5"),
        Matcher("job", "!=", "x"),
        Matcher("node", "=~", None),
        Matcher("xid", "!~", "13|31"),
    )
    assert found.labels == {"le", "job", "node", "xid"}


@pytest.mark.parametrize(
    ("expression", "asked"),
    [
        ("sum by (le, node) (a)", [{"le", "node"}]),
        ("sum without (gpu) (a)", [set()]),
        ("sum by (node) (max by (node, gpu) (a))", [{"node", "gpu"}]),
        ("topk by (node) (3, a)", [{"node"}]),
        ("sum by (x) (topk(3, a))", [{"x"}]),
        ("a unless on (instance) b", [{"instance"}, {"instance"}]),
        ("a and ignoring (x) b", [set(), set()]),
        ("a * on (node) group_left (version) b", [{"node"}, {"node", "version"}]),
        ("a * on (node) group_right (version) b", [{"node", "version"}, {"node"}]),
        ("sum by (version, x) (a * on (node) group_left (version) b)", [{"node", "x"}, {"node", "version"}]),
        ("sum by (x) (a / on (node, x) b)", [{"node", "x"}, {"node", "x"}]),
        ("sum by (x) (a or b)", [{"x"}, {"x"}]),
        ("sum by (x) (a and on (node) b)", [{"x", "node"}, {"node"}]),
        ("sum by (x) (a - b)", [{"x"}, {"x"}]),
        ("histogram_quantile(0.9, rate(a[5m]))", [{"le"}]),
        ('sum by (to) (label_replace(a, "to", "$1", "from", "(.*)"))', [{"from"}]),
        ('sum by (to) (label_join(a, "to", "-", "x", "y"))', [{"x", "y"}]),
        ("sum by (job) (absent(a))", [set()]),
        ("sum by (x) (rate(a[5m]))", [{"x"}]),
        ("sum by (x) (max_over_time(a[1h:5m]))", [{"x"}]),
        ("sum by (x, $group) (-(a))", [{"x"}]),
    ],
)
def test_labels_that_the_expression_needs_are_found(expression: str, asked: list[set[str]]) -> None:
    assert [each.asked for each in selectors(expression)] == asked


@pytest.mark.parametrize(
    ("expression", "function"),
    [("rate(a[5m])", "rate"), ("sum(increase((a[5m])))", "increase"), ("rate(sum(a)[5m:])", None), ("a", None)],
)
def test_the_function_is_that_of_the_samples(expression: str, function: str | None) -> None:
    assert [each.function for each in selectors(expression)] == [function]


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("label_values(up, node)", ("up", "node")),
        ('label_values(up{job="a", x=~"1,2"},node)', ('up{job="a", x=~"1,2"}', "node")),
        ("label_values(model_name)", (None, "model_name")),
        ("query_result(sum by (x) (a))", ("sum by (x) (a)", None)),
        ("metrics(vllm.*)", (None, None)),
        ("label_names()", (None, None)),
        ("sum(a)", ("sum(a)", None)),
    ],
)
def test_the_query_of_a_variable_is_taken_apart(query: str, found: tuple[str | None, str | None]) -> None:
    assert variable_query(query) == found
