"""From a page of metrics to a schema: on the node without any library, here with one, and both the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.module_utils.common.text.converters import to_text
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.metrics_pages import VLLM_PAGE, endpoint, needs, page
from tests.unit.node_code import ROOT
from tests.unit.role_code import load, run_module, shared_code
from tests.unit.web import Site, nobody, serving
from vllm_node import inputs
from vllm_node.metrics import dictionary, endpoints, schema
from vllm_node.metrics.exposition import schema_of

# What is odd about pages that exist: a label that holds braces, quotes and ends of lines, times, no TYPE line, a counter
# without _total, a histogram that is called one with it, a family without samples.
ODD = '''# HELP requests_total What "it" says {is} no label
# TYPE requests_total counter
requests_total{path="/a{b}",said="a \\"quote\\", a \\\\ and a \\n"} 1.5e3 1700000000000
requests_total{path="/c",said=""}  NaN
# TYPE DCGM_FI_DEV_PCIE_REPLAY_COUNTER counter
DCGM_FI_DEV_PCIE_REPLAY_COUNTER{gpu="0",UUID="GPU-1"} 0
# TYPE steps_total histogram
steps_total_bucket{le="1.0",engine="0"} 1
steps_total_bucket{le="10.0",engine="0"} 2
steps_total_bucket{le="2.5",engine="1"} 2
steps_total_bucket{le="+Inf",engine="0"} +Inf
steps_total_sum{engine="0"} 3
steps_total_count{engine="0"} 4
# TYPE took_seconds summary
took_seconds{quantile="0.99"} 1
took_seconds{quantile="0.5"} 1
took_seconds_sum 3
took_seconds_count 4
# TYPE size_bytes summary
size_bytes_sum{handler="x"} 3
size_bytes_count{handler="x"} 4
# TYPE nobody gauge
# TYPE plain untyped
plain 1
without_type_count{x="1"} -0.5

# a comment
# TYPE with_le gauge
with_le{le="7"} 1
up 1
'''
SCHEMA = {
    "requests_total": {"type": "counter", "labels": ["path", "said"], "series": 2},
    "DCGM_FI_DEV_PCIE_REPLAY_COUNTER": {"type": "counter", "labels": ["UUID", "gpu"], "series": 1},
    "steps_total": {
        "type": "histogram",
        "labels": ["engine"],
        "edges": ["1.0", "2.5", "10.0", "+Inf"],
        "suffixes": ["_bucket", "_count", "_sum"],
        "series": 6,
    },
    "took_seconds": {"type": "summary", "quantiles": ["0.5", "0.99"], "suffixes": ["", "_count", "_sum"], "series": 4},
    "size_bytes": {"type": "summary", "labels": ["handler"], "suffixes": ["_count", "_sum"], "series": 2},
    "plain": {"type": "untyped", "series": 1},
    "without_type_count": {"type": "untyped", "labels": ["x"], "series": 1},
    "with_le": {"type": "gauge", "labels": ["le"], "series": 1},
    "up": {"type": "untyped", "series": 1},
}
CHAT = {"job": "vllm", "instance": "chat"}


@pytest.fixture(scope="module")
def module() -> Any:
    return load("roles/metrics/library/metrics_schema.py")


def test_a_page_becomes_its_schema(module: Any) -> None:
    assert module.schema(ODD) == SCHEMA


def test_the_library_sees_the_same(module: Any) -> None:
    assert schema_of(ODD) == SCHEMA


@pytest.mark.parametrize("job", dictionary.load().jobs())
def test_node_and_library_agree_on_every_job(module: Any, job: str) -> None:
    text = page(job, conditional=True)
    assert module.schema(text) == schema_of(text)
    assert len(schema_of(text)) > 15


@pytest.mark.skipif(needs(VLLM_PAGE) is not None, reason=str(needs(VLLM_PAGE)))
def test_node_and_library_agree_on_a_real_server(module: Any) -> None:
    text = VLLM_PAGE.read_text()
    assert module.schema(text) == schema_of(text)


LABELS = st.dictionaries(
    st.from_regex(r"[a-z][a-z0-9_]{0,5}", fullmatch=True).filter(lambda name: name not in ("le", "quantile")),
    # A label may hold what Python takes for the end of a line; the text format ends lines with \n alone.
    st.text(st.characters(codec="utf-8"), max_size=8),
    max_size=3,
)


@given(st.lists(st.tuples(st.sampled_from(["a", "b_total", "c:d"]), LABELS), min_size=1, max_size=6))
def test_every_value_of_a_label_is_passed_over(samples: list[tuple[str, dict[str, str]]]) -> None:
    module = load("roles/metrics/library/metrics_schema.py")

    def quoted(text: str) -> str:
        return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")

    lines = [
        name + "{" + ",".join(f'{label}="{quoted(value)}"' for label, value in labels.items()) + "} 1"
        for name, labels in samples
    ]
    found = module.schema("\n".join(lines))
    for name in {name for name, _ in samples}:
        own = [labels for other, labels in samples if other == name]
        assert found[name]["series"] == len(own)
        assert found[name].get("labels", []) == sorted({label for labels in own for label in labels})


@pytest.mark.parametrize(
    "text", ["<html>", "a", "a{b}", 'a{b="c} 1', "a one", 'a{b="c"}', "{} 1", "1a 2", 'a{b="c"} 1 2\nnonsense here']
)
def test_what_is_no_page_of_metrics_is_refused_with_its_line(module: Any, text: str) -> None:
    with pytest.raises(ValueError, match=r"line \d is no metric: "):
        module.schema(text)


def asked(module: Any, capsys: pytest.CaptureFixture[str], *pages: dict[str, Any], **more: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = run_module(module, capsys, endpoints=list(pages), **more)["endpoints"]
    return found


def test_the_module_tells_what_an_endpoint_offers_and_no_value(module: Any, capsys: pytest.CaptureFixture[str]) -> None:
    site = Site({"/metrics": (200, ODD), "/version": (200, '{"version": "0.32.0"}')})
    with serving(site):
        (found,) = asked(module, capsys, {**CHAT, "url": f"{site.url}/metrics"})
    assert (found["state"], found["error"], found["version"], found["metrics"]) == ("ok", None, "0.32.0", SCHEMA)
    told = json.dumps(found)
    assert [word for word in ("/a{b}", "quote", "GPU-1", "1500", "NaN") if word in told] == []


@pytest.mark.parametrize("answer", [(404, ""), (200, "[]"), (200, '{"version": 1}'), (200, "{")])
def test_a_version_that_is_not_told_is_not_known(
    module: Any, capsys: pytest.CaptureFixture[str], answer: tuple[int, str]
) -> None:
    site = Site({"/metrics": (200, "up 1\n"), "/version": answer})
    with serving(site):
        (found,) = asked(module, capsys, {**CHAT, "url": f"{site.url}/metrics"})
    assert (found["state"], found["version"]) == ("ok", None)


def test_only_vllm_is_asked_for_its_version(module: Any, capsys: pytest.CaptureFixture[str]) -> None:
    site = Site({"/metrics": (200, "up 1\n")})
    with serving(site):
        asked(module, capsys, {"job": "node", "instance": "n", "url": f"{site.url}/metrics"})
    assert [path for path, _ in site.asked] == ["/metrics"]


def test_a_dead_endpoint_is_gone_and_the_others_are_told(module: Any, capsys: pytest.CaptureFixture[str]) -> None:
    site = Site({"/metrics": (200, "up 1\n"), "/html": (200, "<html>")})
    with serving(site):
        urls = [f"{site.url}/metrics", f"{nobody()}/metrics", f"{site.url}/nowhere", f"{site.url}/html"]
        found = asked(module, capsys, *({"job": "node", "instance": "n", "url": url} for url in urls))
    told = [(one["state"], one["error"]) for one in found]
    assert told == [
        ("ok", None),
        ("gone", "Connection refused"),
        ("gone", "HTTP 404"),
        ("gone", "line 1 is no metric: <html>"),
    ]
    assert [one["metrics"] for one in found[1:]] == [{}, {}, {}]


def test_an_empty_page_is_not_a_dead_one(module: Any, capsys: pytest.CaptureFixture[str]) -> None:
    site = Site({"/metrics": (200, "")})
    with serving(site):
        (found,) = asked(module, capsys, {"job": "dcgm", "instance": "d", "url": f"{site.url}/metrics"})
    assert (found["state"], found["metrics"]) == ("ok", {})


def test_an_endpoint_that_is_switched_off_is_not_asked(module: Any, capsys: pytest.CaptureFixture[str]) -> None:
    site = Site()
    with serving(site):
        (found,) = asked(module, capsys, {**CHAT, "url": f"{site.url}/metrics", "enabled": False})
    assert (found["state"], found["error"], site.asked) == ("off", None, [])


def test_a_slow_endpoint_is_given_up(module: Any, capsys: pytest.CaptureFixture[str]) -> None:
    site = Site({"/metrics": (200, "up 1\n")}, delay_s=0.6)
    with serving(site):
        (found,) = asked(module, capsys, {**CHAT, "url": f"{site.url}/metrics"}, limit_s=0.1)
    assert (found["state"], found["error"]) == ("gone", "timed out")


def test_a_page_that_is_cut_off_is_not_taken_for_a_whole_one(module: Any, capsys: pytest.CaptureFixture[str]) -> None:
    site = Site({"/metrics": (200, "up 1\n")}, cut=True)
    with serving(site):
        (found,) = asked(module, capsys, {**CHAT, "url": f"{site.url}/metrics"})
    assert found["state"] == "gone"
    assert "cut off" in found["error"]


def test_a_page_without_an_end_is_given_up(
    module: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_code("loopback"), "LARGEST_BYTES", 2**20)
    site = Site({"/metrics": (200, "up 1\n" * 2**18)})
    with serving(site):
        (found,) = asked(module, capsys, {**CHAT, "url": f"{site.url}/metrics"})
    assert found["error"] == "the page is larger than 1 MiB"


def test_nothing_but_loopback_is_asked(module: Any, capsys: pytest.CaptureFixture[str]) -> None:
    (found,) = asked(module, capsys, {**CHAT, "url": "http://192.0.2.1/metrics"})
    assert (found["state"], found["error"]) == ("gone", "http://192.0.2.1/metrics is not on loopback")


def test_a_proxy_of_the_site_is_not_used(
    module: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", nobody())
    monkeypatch.delenv("no_proxy", raising=False)
    site = Site({"/metrics": (200, "up 1\n")})
    with serving(site):
        (found,) = asked(module, capsys, {**CHAT, "url": f"{site.url}/metrics"})
    assert found["state"] == "ok"


def test_endpoints_come_from_the_variables_of_the_roles() -> None:
    specs = inputs.load_specs(ROOT / "roles")
    site = {"vllm_instances": [{"name": "chat", "port": 8000}], "dcgm_exporter_enabled": False, "node_exporter_port": 91}
    found = endpoints.endpoints(inputs.with_defaults(site, specs))
    assert [(one["job"], one["instance"], one["url"], one["enabled"]) for one in found] == [
        ("prometheus", "prometheus", "http://127.0.0.1:9091/metrics", True),
        ("alertmanager", "alertmanager", "http://127.0.0.1:9093/metrics", True),
        ("node", "node-exporter", "http://127.0.0.1:91/metrics", True),
        ("dcgm", "dcgm-exporter", "http://127.0.0.1:9400/metrics", False),
        ("vllm", "chat", "http://127.0.0.1:8000/metrics", True),
    ]
    assert set(endpoints.VARIABLES) <= set(inputs.names(specs))


def test_the_endpoints_are_the_targets_of_prometheus() -> None:
    """One scheme of jobs and instances: what Prometheus scrapes is what is looked at."""
    config = yaml.safe_load((ROOT / "tests/golden/node-a/etc/vllm-node/prometheus/prometheus.yml").read_text())
    scraped = {
        (job["job_name"], static["labels"]["instance"])
        for job in config["scrape_configs"]
        for static in job["static_configs"]
    }
    specs = inputs.load_specs(ROOT / "roles")
    names = [instance for job, instance in scraped if job == "vllm"]
    site = inputs.with_defaults({"vllm_instances": [{"name": name, "port": 1} for name in names]}, specs)
    assert {(one["job"], one["instance"]) for one in endpoints.endpoints(site)} == scraped


def test_units_are_named_as_the_roles_name_them() -> None:
    assert endpoints.unit("vllm", "chat") == "vllm-chat.service"
    assert endpoints.unit("dcgm", "dcgm-exporter") == "dcgm-exporter.service"


def raw(**changes: Any) -> dict[str, Any]:
    return {**CHAT, "url": "http://127.0.0.1:1/metrics", "state": "ok", "error": None, "metrics": SCHEMA, **changes}


def test_a_schema_comes_back_from_its_file_as_it_was(tmp_path: Path) -> None:
    given = [raw(version="0.32.0"), raw(state="gone", error="no", metrics={})]
    path = schema.write(tmp_path / "new", "gpu1", given)
    assert path == tmp_path / "new/gpu1.yml"
    assert schema.read(path) == schema.parse(given)
    text = path.read_text()
    assert "!!" not in text
    assert text.startswith("# Written by")


def test_text_that_ansible_has_marked_is_written_as_text(tmp_path: Path) -> None:
    class Marked(str):
        """As Ansible hands it on."""

    path = schema.write(tmp_path, "gpu1", [raw(instance=Marked("chat"), url=to_text("http://127.0.0.1:1/metrics"))])
    assert schema.read(path)[0].instance == "chat"


def test_series_are_named_as_in_promql() -> None:
    (found,) = schema.parse([raw()])
    series = found.series()
    assert {"steps_total_bucket", "took_seconds", "took_seconds_sum", "up"} <= set(series)
    assert "steps_total" not in series
    assert "size_bytes" not in series
    assert series["steps_total_bucket"].has_label("le")
    assert series["took_seconds"].has_label("quantile")
    assert not series["up"].has_label("le")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "gpu1.yml"),
        ("schema: 2\nendpoints: []", "no schema of metrics of version 1"),
        ("[]", "no schema of metrics"),
        ("schema: 1", "damaged: KeyError"),
        ("schema: 1\nendpoints: [x]", "damaged: TypeError"),
        ("schema: 1\nendpoints: [{job: a, instance: b, url: c, state: ok, metrics: {x: {}}}]", "damaged: KeyError"),
    ],
)
def test_a_file_that_is_no_schema_is_refused_in_words(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "gpu1.yml"
    path.write_text(text)
    with pytest.raises(ValueError, match=said):
        schema.read(path)


def test_the_helper_of_these_tests_offers_what_should_be_there() -> None:
    assert endpoint("vllm").series().keys() >= {"vllm:kv_cache_usage_perc", "vllm:iteration_tokens_total_count"}
