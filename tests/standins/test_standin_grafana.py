"""The stand-in for Grafana, run as a program on loopback."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from vllm_node.dashboards import store
from vllm_node.lab import gpu
from vllm_node.plugins.filter.dashboards import FilterModule

PROGRAM = gpu.STANDINS / "grafana"
REAL_DASHBOARDS = Path(__file__).parents[3] / "shared/data/dashboards"
needs_real_dashboards = pytest.mark.skipif(
    not REAL_DASHBOARDS.is_dir(), reason="no shared/data beside the project: real dashboards"
)
QUIET = {
    "GF_ANALYTICS_REPORTING_ENABLED": "false",
    "GF_ANALYTICS_CHECK_FOR_UPDATES": "false",
    "GF_ANALYTICS_CHECK_FOR_PLUGIN_UPDATES": "false",
    "GF_NEWS_NEWS_FEED_ENABLED": "false",
    "GF_SECURITY_DISABLE_GRAVATAR": "true",
    "GF_PLUGINS_PREINSTALL_DISABLED": "true",
    "GF_PLUGINS_PUBLIC_KEY_RETRIEVAL_DISABLED": "true",
}
PROMETHEUS = {
    "name": "Prometheus",
    "uid": "prometheus",
    "type": "prometheus",
    "access": "proxy",
    "url": "http://127.0.0.1:1",
    "isDefault": True,
}
BOARD: dict[str, Any] = {
    "uid": "vllm",
    "id": None,
    "title": "vLLM",
    "tags": ["vllm"],
    "panels": [
        {"type": "row", "title": "r", "panels": [{"type": "stat", "title": "s"}]},
        {"type": "timeseries", "title": "t", "datasource": {"type": "prometheus", "uid": "prometheus"}},
    ],
    "annotations": {"list": [{"datasource": {"type": "grafana", "uid": "-- Grafana --"}}]},
}


@dataclass
class Tree:
    """What would be mounted into the container, and its environment."""

    folder: Path
    env: dict[str, str]

    def datasources(self, *entries: dict[str, Any], **more: Any) -> None:
        self.write("datasources/site.yaml", {"apiVersion": 1, "datasources": list(entries), **more})

    def write(self, name: str, content: Any) -> None:
        (self.folder / "provisioning" / name).write_text(yaml.safe_dump(content))

    def board(self, name: str, **changes: Any) -> Path:
        path = self.folder / "boards" / name
        path.write_text(json.dumps({**BOARD, **changes}))
        return path

    def providers(self, *entries: dict[str, Any]) -> None:
        self.write("dashboards/site.yaml", {"apiVersion": 1, "providers": list(entries)})

    def provider(self, **changes: Any) -> dict[str, Any]:
        return {
            "name": "files",
            "folder": "Node",
            "type": "file",
            "options": {"path": str(self.folder / "boards")},
            **changes,
        }

    def command(self, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, str(PROGRAM), *arguments],
            env=self.env,
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
            timeout=15,
        )

    def refused(self) -> str:
        result = self.command()
        assert result.returncode == 1, result.stdout
        return result.stdout + result.stderr


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    for folder in ("data", "boards", "provisioning/datasources", "provisioning/dashboards"):
        (tmp_path / folder).mkdir(parents=True)
    clean = {key: value for key, value in os.environ.items() if not key.startswith("GF_")}
    env = {
        **clean,
        **QUIET,
        "GF_PATHS_DATA": str(tmp_path / "data"),
        "GF_PATHS_PROVISIONING": str(tmp_path / "provisioning"),
        "GF_SERVER_HTTP_ADDR": "127.0.0.1",
        "GF_SERVER_HTTP_PORT": "0",
        "GF_SECURITY_ADMIN_PASSWORD": "first",
    }
    made = Tree(tmp_path, env)
    made.datasources(PROMETHEUS)
    made.providers(made.provider())
    made.board("vllm.json")
    return made


@dataclass
class Running:
    process: subprocess.Popen[str]
    address: str

    def request(self, path: str, password: str | None = "first", body: Any = None) -> tuple[int, Any]:
        request = urllib.request.Request(f"http://{self.address}{path}", method="PUT" if body else "GET")
        if password is not None:
            request.add_header(
                "Authorization", "Basic " + base64.b64encode(f"admin:{password}".encode()).decode()
            )
        data = json.dumps(body).encode() if body else None
        try:
            with urllib.request.urlopen(request, data, timeout=10) as reply:
                status, text = reply.status, reply.read().decode()
        except urllib.error.HTTPError as error:
            status, text = error.code, error.read().decode()
        try:
            return status, json.loads(text)
        except ValueError:
            return status, text

    def get(self, path: str) -> Any:
        status, content = self.request(path)
        assert status == 200, content
        return content

    def problems(self) -> list[str]:
        return [problem["text"] for problem in self.get("/api/standin/problems")]


Start = Callable[[Tree], Running]


@pytest.fixture
def start() -> Iterator[Start]:
    processes: list[subprocess.Popen[str]] = []

    def start_one(tree: Tree) -> Running:
        process = subprocess.Popen(
            [sys.executable, str(PROGRAM)], env=tree.env, stdout=subprocess.PIPE, text=True
        )
        processes.append(process)
        assert process.stdout is not None
        for line in process.stdout:
            found = re.search(r'HTTP Server Listen" address="(\S+)"', line)
            if found:
                return Running(process, found[1])
        raise AssertionError(f"ended with {process.wait()} before it listened")

    yield start_one
    for process in processes:
        process.kill()
        process.communicate()


# --- what it serves ---------------------------------------------------------------------------------------


def test_health_needs_no_login_and_the_api_does(start: Start, tree: Tree) -> None:
    grafana = start(tree)
    status, health = grafana.request("/api/health", password=None)
    assert (status, health["database"]) == (200, "ok")
    assert health["version"].endswith("-standin")
    assert grafana.request("/login", password=None)[0] == 200
    for path in ("/api/datasources", "/api/search", "/api/standin/problems", "/api/nothing"):
        assert grafana.request(path, password=None)[0] == 401
        assert grafana.request(path, password="wrong")[0] == 401
    assert grafana.request("/api/nothing")[0] == 404


def test_a_sound_tree_has_no_problems(start: Start, tree: Tree) -> None:
    grafana = start(tree)
    assert grafana.problems() == []
    (source,) = grafana.get("/api/datasources")
    assert {key: source[key] for key in PROMETHEUS} == PROMETHEUS
    (hit,) = grafana.get("/api/search?type=dash-db")
    assert (hit["uid"], hit["title"], hit["folderTitle"], hit["url"]) == (
        "vllm",
        "vLLM",
        "Node",
        "/d/vllm/vllm",
    )
    board = grafana.get("/api/dashboards/uid/vllm")
    assert board["dashboard"] == BOARD
    assert board["meta"]["provisioned"] is True
    assert grafana.request("/api/dashboards/uid/none")[0] == 404


def test_dashboards_are_read_again_without_a_restart(start: Start, tree: Tree) -> None:
    grafana = start(tree)
    tree.board("second.json", uid="second", title="Second")
    assert {hit["uid"] for hit in grafana.get("/api/search")} == {"vllm", "second"}


def test_variables_and_files_are_filled_in(start: Start, tree: Tree) -> None:
    secret = tree.folder / "url"
    secret.write_text("http://127.0.0.1:2\n")
    tree.env["SITE_NAME"] = "here"
    tree.datasources({**PROMETHEUS, "url": f"$__file{{{secret}}}", "name": "P ${SITE_NAME} $$x"})
    (source,) = start(tree).get("/api/datasources")
    assert (source["url"], source["name"]) == ("http://127.0.0.1:2", "P here $x")


def test_a_datasource_without_uid_gets_the_one_grafana_makes(start: Start, tree: Tree) -> None:
    tree.datasources({key: value for key, value in PROMETHEUS.items() if key != "uid"})
    tree.board("vllm.json", panels=[])
    assert start(tree).get("/api/datasources/uid/PBFA97CFB590B2093")["name"] == "Prometheus"


@pytest.fixture
def prometheus() -> Iterator[str]:
    """Address of something that answers like Prometheus, and repeats what it was asked."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps({"status": "success", "asked": self.path}).encode()
            self.send_response(503 if "down" in self.path else 200)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def test_the_proxy_asks_the_datasource(start: Start, tree: Tree, prometheus: str) -> None:
    tree.datasources({**PROMETHEUS, "url": prometheus + "/"})
    grafana = start(tree)
    asked = "/api/v1/query?query=up%7Bjob%3D%22vllm%22%7D"
    assert grafana.get("/api/datasources/proxy/uid/prometheus" + asked)["asked"] == asked
    assert grafana.request("/api/datasources/proxy/uid/prometheus/down")[0] == 503
    assert grafana.request("/api/datasources/proxy/uid/other/api/v1/query")[0] == 404
    assert grafana.get("/api/datasources/uid/prometheus/health")["status"] == "OK"


def test_an_unreachable_datasource_is_a_bad_gateway(start: Start, tree: Tree) -> None:
    grafana = start(tree)
    assert grafana.request("/api/datasources/proxy/uid/prometheus/api/v1/query?query=up")[0] == 502
    status, content = grafana.request("/api/datasources/uid/prometheus/health")
    assert (status, content["status"]) == (400, "ERROR")


def test_sigterm_ends_it_at_once(start: Start, tree: Tree) -> None:
    grafana = start(tree)
    began = time.monotonic()
    grafana.process.send_signal(signal.SIGTERM)
    assert grafana.process.wait(timeout=5) == 0
    assert time.monotonic() - began < 2


# --- the admin's password ---------------------------------------------------------------------------------


def test_the_password_comes_from_a_file(start: Start, tree: Tree) -> None:
    secret = tree.folder / "password"
    secret.write_text("from-a-file\n")
    del tree.env["GF_SECURITY_ADMIN_PASSWORD"]
    tree.env["GF_SECURITY_ADMIN_PASSWORD__FILE"] = str(secret)
    assert start(tree).request("/api/search", password="from-a-file")[0] == 200


def test_password_and_password_file_exclude_each_other(tree: Tree) -> None:
    tree.env["GF_SECURITY_ADMIN_PASSWORD__FILE"] = "/dev/null"
    message = tree.refused()
    assert "Both GF_SECURITY_ADMIN_PASSWORD and GF_SECURITY_ADMIN_PASSWORD__FILE are set" in message


def test_a_missing_password_file_ends_it(tree: Tree) -> None:
    del tree.env["GF_SECURITY_ADMIN_PASSWORD"]
    tree.env["GF_SECURITY_ADMIN_PASSWORD__FILE"] = str(tree.folder / "nowhere")
    assert "No such file" in tree.refused()


def test_a_new_password_in_the_environment_is_ignored_after_the_first_start(start: Start, tree: Tree) -> None:
    start(tree).process.terminate()
    tree.env["GF_SECURITY_ADMIN_PASSWORD"] = "second"
    grafana = start(tree)
    assert grafana.request("/api/search", password="second")[0] == 401
    assert grafana.request("/api/search", password="first")[0] == 200


@pytest.mark.parametrize(("arguments", "stdin"), [(["second"], ""), (["--password-from-stdin"], "second\n")])
def test_the_command_line_sets_it_while_the_server_runs(
    start: Start, tree: Tree, arguments: list[str], stdin: str
) -> None:
    grafana = start(tree)
    result = tree.command("cli", "--homepath=/x", "admin", "reset-admin-password", *arguments, stdin=stdin)
    assert result.returncode == 0, result.stderr
    assert grafana.request("/api/search", password="first")[0] == 401
    assert grafana.request("/api/search", password="second")[0] == 200


def test_the_api_sets_it_for_who_knows_the_old_one(start: Start, tree: Tree) -> None:
    grafana = start(tree)
    path = "/api/user/password"
    assert grafana.request(path, body={"oldPassword": "wrong", "newPassword": "second"})[0] == 401
    assert grafana.request(path, body={"oldPassword": "first", "newPassword": "abc"})[0] == 400
    assert grafana.request(path, body={"oldPassword": "first", "newPassword": "second"})[0] == 200
    assert grafana.request("/api/search", password="second")[0] == 200


def test_the_password_is_nowhere_in_the_data_folder(start: Start, tree: Tree) -> None:
    tree.env["GF_SECURITY_ADMIN_PASSWORD"] = "a-long-secret"
    start(tree)
    for path in (tree.folder / "data").iterdir():
        assert b"a-long-secret" not in path.read_bytes()


# --- what it refuses --------------------------------------------------------------------------------------


def test_a_data_folder_that_cannot_be_written_ends_it(tree: Tree) -> None:
    tree.env["GF_PATHS_DATA"] = str(tree.folder / "nowhere")
    assert "is not writable" in tree.refused()


@pytest.mark.parametrize("key", ["name", "type", "access", "url"])
def test_a_datasource_needs_its_four_keys(tree: Tree, key: str) -> None:
    tree.datasources({name: value for name, value in PROMETHEUS.items() if name != key})
    assert f"datasource 1 has no {key}" in tree.refused()


@pytest.mark.parametrize(
    ("second", "words"),
    [
        ({"name": "Other", "uid": "prometheus", "isDefault": False}, "uid 'prometheus' is there twice"),
        ({"name": "Prometheus", "uid": "other", "isDefault": False}, "name 'Prometheus' is there twice"),
        ({"name": "Other", "uid": "other"}, "Only one datasource per organization can be marked as default"),
        ({"name": "Other", "uid": "other", "isDefault": False, "access": "browser"}, "want proxy or direct"),
    ],
)
def test_a_second_datasource_must_fit(tree: Tree, second: dict[str, Any], words: str) -> None:
    tree.datasources(PROMETHEUS, {**PROMETHEUS, **second})
    assert words in tree.refused()


@pytest.mark.parametrize("kind", ["datasources", "dashboards"])
@pytest.mark.parametrize("version", [None, 0, 2])
def test_the_version_of_a_file_must_be_one(tree: Tree, kind: str, version: int | None) -> None:
    tree.write(f"{kind}/old.yaml", {"apiVersion": version} if version is not None else {"x": 1})
    assert "apiVersion must be 1" in tree.refused()


def test_a_file_that_is_not_yaml_ends_it(tree: Tree) -> None:
    (tree.folder / "provisioning/datasources/bad.yml").write_text("a: [")
    assert "could not parse provisioning config file" in tree.refused()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"name": ""}, "needs a name, type file and options.path"),
        ({"type": "git"}, "needs a name, type file and options.path"),
        ({"options": {}}, "needs a name, type file and options.path"),
        ({"options": {"path": "/nowhere"}}, "cannot read directory /nowhere"),
    ],
)
def test_a_provider_must_be_whole(tree: Tree, changes: dict[str, Any], words: str) -> None:
    tree.providers(tree.provider(**changes))
    assert words in tree.refused()


def test_two_providers_of_one_name_collide(tree: Tree) -> None:
    tree.providers(tree.provider(), tree.provider())
    assert "dashboard name collision" in tree.refused()


def test_a_taken_port_ends_it(start: Start, tree: Tree) -> None:
    tree.env["GF_SERVER_HTTP_PORT"] = start(tree).address.rpartition(":")[2]
    assert "failed to open listener" in tree.refused()


def test_unknown_settings_are_ignored_and_unknown_arguments_are_not(start: Start, tree: Tree) -> None:
    tree.env["GF_COLOUR_OF_THE_SKY"] = "blue"
    assert start(tree).problems() == []
    assert tree.command("--frobnicate").returncode == 1


# --- problems ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"id": 7}, "id is 7"),
        ({"__inputs": [{"name": "DS_PROMETHEUS"}]}, "__inputs are never asked for"),
        ({"panels": [{"type": "graph", "title": "old"}]}, "panel 'old' is of type 'graph'"),
        ({"panels": [{"type": "row", "panels": [{"type": "singlestat", "title": "in"}]}]}, "'singlestat'"),
        ({"panels": [{"type": "stat", "datasource": {"uid": "other"}}]}, "datasource 'other' was not found"),
        ({"panels": [{"type": "stat", "datasource": "${ds}"}]}, "datasource ${ds} was not found"),
        (
            {"panels": [{"type": "stat", "datasource": {"type": "loki", "uid": "prometheus"}}]},
            "is of type prometheus, the panel wants loki",
        ),
        ({"title": "", "uid": "untitled"}, "title cannot be empty"),
        ({"uid": None}, "uid '' must be"),
        ({"uid": "no spaces"}, "uid 'no spaces' must be"),
        ({"links": [{"url": "/x?var=${DS_PROMETHEUS}"}]}, "${DS_PROMETHEUS} is left"),
    ],
)
def test_what_would_break_a_panel_is_listed(
    start: Start, tree: Tree, changes: dict[str, Any], words: str
) -> None:
    path = tree.board("vllm.json", **changes)
    problems = start(tree).get("/api/standin/problems")
    assert len(problems) == 1, problems
    assert (problems[0]["kind"], problems[0]["file"]) == ("dashboard", str(path))
    assert words in problems[0]["text"]


def test_json_that_is_none_is_listed_and_the_others_load(start: Start, tree: Tree) -> None:
    (tree.folder / "boards/broken.json").write_text("{")
    grafana = start(tree)
    (problem,) = grafana.problems()
    assert problem.startswith("not loaded: ")
    assert [hit["uid"] for hit in grafana.get("/api/search")] == ["vllm"]


def test_a_uid_that_is_there_twice_is_listed(start: Start, tree: Tree) -> None:
    first = tree.board("a.json", title="Other")
    (problem,) = start(tree).get("/api/standin/problems")
    assert problem["text"] == f"not loaded: uid 'vllm' is also that of {first}"
    assert problem["file"].endswith("vllm.json")


def test_a_title_that_is_there_twice_is_listed(start: Start, tree: Tree) -> None:
    tree.board("a.json", uid="other")
    assert start(tree).problems() == ["the title 'vLLM' is there twice in one folder"]


def test_a_datasource_variable_of_the_right_type_is_fine(start: Start, tree: Tree) -> None:
    variable = {"type": "datasource", "name": "DS_PROMETHEUS", "query": "prometheus"}
    panel = {"type": "stat", "datasource": {"type": "prometheus", "uid": "${DS_PROMETHEUS}"}}
    tree.board("vllm.json", panels=[panel], templating={"list": [variable]})
    assert start(tree).problems() == []
    tree.board("vllm.json", panels=[panel], templating={"list": [{**variable, "query": "loki"}]})
    assert "no datasource of its type" in start(tree).problems()[0]


@pytest.mark.parametrize("name", QUIET)
def test_a_setting_that_would_call_out_is_listed(start: Start, tree: Tree, name: str) -> None:
    del tree.env[name]
    (problem,) = start(tree).get("/api/standin/problems")
    assert problem["kind"] == "calls-out"
    assert problem["text"].startswith(name)


def test_plugins_to_install_are_listed(start: Start, tree: Tree) -> None:
    tree.env["GF_INSTALL_PLUGINS"] = "some-panel"
    assert start(tree).problems() == ["GF_INSTALL_PLUGINS asks for plugins"]


@needs_real_dashboards
def test_nvidias_own_dashboard_is_full_of_retired_panels(start: Start, tree: Tree) -> None:
    shutil.copyfile(REAL_DASHBOARDS / "dcgm-exporter.json", tree.folder / "boards/dcgm.json")
    problems = start(tree).problems()
    assert sum("is of type 'graph'" in problem for problem in problems) == 6
    assert all("is of type 'graph'" in problem for problem in problems)


@needs_real_dashboards
@pytest.mark.parametrize("name", ["vllm-grafana", "vllm-performance"])
def test_vllms_dashboards_only_carry_an_id(start: Start, tree: Tree, name: str) -> None:
    shutil.copyfile(REAL_DASHBOARDS / f"{name}.json", tree.folder / "boards/vllm.json")
    (problem,) = start(tree).problems()
    assert problem.startswith("id is ")


def test_the_dashboards_of_the_project_have_no_problems(start: Start, tree: Tree) -> None:
    (tree.folder / "boards/vllm.json").unlink()
    for entry in FilterModule().filters()["dashboard_files"]({}):
        (tree.folder / "boards" / Path(entry["path"]).name).write_text(entry["content"])
    grafana = start(tree)
    assert grafana.problems() == []
    assert {hit["uid"] for hit in grafana.get("/api/search")} == {path.stem for path in store.paths()}


def test_a_threshold_that_nobody_filled_in_is_listed(start: Start, tree: Tree) -> None:
    shutil.copy(store.folder() / "vllm-node-kv-cache.json", tree.folder / "boards/stored.json")
    (problem,) = start(tree).problems()
    assert problem == (
        "panel 'KV cache in use' has the threshold 'alert:VllmKVCacheSaturated', which is no number"
    )
