"""The life of a node with real vLLM: up, changed, hurt, rebooted, down.

The tests of this file build on each other, as the days of a node do; where there are two nodes, they go through them side by side.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.labs import Nodes, Run
from vllm_node.lab.node import Spec

pytestmark = pytest.mark.real
# One in `make test`; both side by side in `make test-long`.
PODMANS = os.environ.get("VLLM_NODE_LIFE", "5.4").split(",")
SPECS = tuple(Spec("p" + podman.replace(".", ""), podman=podman) for podman in PODMANS)
NAMES = tuple(spec.name for spec in SPECS)
ALL = ",".join(NAMES)
CONTAINERS = ("alertmanager", "dcgm-exporter", "gateway", "grafana", "node-exporter", "prometheus", "vllm-tiny")
# Their images have nothing that a health command could run.
WITHOUT_HEALTH = {"dcgm-exporter", "node-exporter"}
PORTS = (8000, 8443, 8444, 9091, 9093, 9100, 9400, 3000)
UNITS = {"gpu-cdi-ready.service", *(f"{name}.service" for name in CONTAINERS)}
PASSWORD = "lab-only-password"
EDITED = {"prometheus_retention_time": "14d"}
# Its own stop is under way when the container before it is killed; the drop-in goes with it.
SLOW_CDI_STOP = """
mkdir /run/systemd/system/gpu-cdi-ready.service.d
cat >/run/systemd/system/gpu-cdi-ready.service.d/slow.conf <<'END'
[Service]
ExecStop=
ExecStop=/bin/sleep 3
ExecStop=/usr/local/libexec/vllm-node/gpu-cdi-ready --remove
ExecStopPost=/bin/rm -r /run/systemd/system/gpu-cdi-ready.service.d
END
systemctl daemon-reload
"""
ROTATED = {**EDITED, "grafana_admin_password": 'a "new" one \\ $HOME'}


@pytest.fixture(scope="module")
def life(nodes: Nodes) -> Iterator[Nodes]:
    """Bare nodes."""
    nodes.make(*SPECS)
    yield nodes
    for name in NAMES:
        nodes.lab.remove(name)


@pytest.fixture(scope="module")
def bare_trees(life: Nodes) -> dict[str, dict[str, str]]:
    """Every file of the bare nodes."""
    return {name: life.tree(name) for name in NAMES}


@pytest.fixture(scope="module")
def first_run(life: Nodes, bare_trees: object) -> Run:
    """The bring-up of both."""
    return life.run("up", limit=ALL)


def ids(life: Nodes, name: str) -> dict[str, str]:
    """Container name → id."""
    listed = json.loads(life.shell(name, "podman ps --format json"))
    return {one["Names"][0]: one["Id"] for one in listed}


def get(life: Nodes, name: str, url: str, *words: str) -> Any:
    """JSON that the node gives at a loopback address."""
    return json.loads(life.shell(name, f"curl -sf {' '.join(words)} '{url}'"))


def eventually(condition: Callable[[], bool], limit_s: float = 300) -> bool:
    """Whether the condition comes true within a generous limit."""
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        try:
            if condition():
                return True
        except (AssertionError, OSError):
            pass  # a node that reboots does not answer
        time.sleep(2)
    return False


def answers(life: Nodes, name: str) -> bool:
    """Whether the model gives a token."""
    body = json.dumps({"model": "tiny", "prompt": "Hello", "max_tokens": 1})
    reply = life.shell(name, f"curl -sf -H 'Content-Type: application/json' -d '{body}' 127.0.0.1:8000/v1/completions")
    return bool(json.loads(reply)["usage"]["completion_tokens"] == 1)


def test_bare_nodes_come_up_and_answer(first_run: Run) -> None:
    assert first_run.code == 0, first_run.document
    for name in NAMES:
        host = first_run.host(name)
        assert {row["unit"]: row["state"] for row in host["rows"]} == dict.fromkeys(UNITS, "ready")
        assert [answer["model"] for answer in host["answers"]] == ["tiny"]
        assert host["answers"][0]["tokens"] > 0


@pytest.mark.parametrize("name", NAMES)
class TestRunning:
    """What is there after the bring-up: the node is asked, not the playbook."""

    def test_units_run_and_containers_are_healthy(self, life: Nodes, first_run: Run, name: str) -> None:
        host = life.host(name)
        for unit in (*UNITS, "vllm-node.target"):
            assert host.service(unit).is_running, unit
        assert host.service("vllm-node.target").is_enabled
        wanted = host.check_output("systemctl show -p Wants --value vllm-node.target").split()
        assert set(wanted) == {f"{one}.service" for one in CONTAINERS}

        def all_healthy() -> bool:
            states = life.shell(name, "podman ps --filter health=healthy --format '{{.Names}}'").split()
            return set(states) == set(CONTAINERS) - WITHOUT_HEALTH

        assert eventually(all_healthy, 120)

    def test_images_are_those_of_the_lock(self, life: Nodes, first_run: Run, name: str) -> None:
        lock = life.lab.inventory()["all"]["vars"]["images_lock"]
        # The lock also has the next major version of Prometheus, which nothing here asks for.
        locked = {f"{image['repository']}@{image['digest']}" for key, image in lock.items() if key != "prometheus_3"}
        listed = json.loads(life.shell(name, "podman images --digests --format json"))
        assert {digest for image in listed for digest in image["RepoDigests"]} == locked
        used = life.shell(name, "podman ps --format '{{.Image}}'").split()
        assert set(used) == locked

    def test_nothing_but_the_gateway_listens_beyond_loopback(self, life: Nodes, first_run: Run, name: str) -> None:
        listening = life.shell(name, "ss -H -lnt").splitlines()
        outside = {line.split()[3] for line in listening} - {"0.0.0.0:22", "[::]:22", "*:22"}
        assert {one for one in outside if not one.startswith(("127.0.0.1:", "[::1]:"))} == {"0.0.0.0:8443"}

    def test_prometheus_has_every_target_up(self, life: Nodes, first_run: Run, name: str) -> None:
        def up() -> dict[str, str]:
            result = get(life, name, "http://127.0.0.1:9091/api/v1/query?query=up")["data"]["result"]
            return {one["metric"]["job"]: one["value"][1] for one in result}

        assert eventually(lambda: up() == dict.fromkeys(("vllm", "dcgm", "node", "prometheus", "alertmanager"), "1"), 60), up()

    def test_the_gateway_lets_in_who_has_a_key(self, life: Nodes, first_run: Run, name: str) -> None:
        def status(path: str, words: str = "") -> str:
            return life.shell(name, f"curl -sk -o /dev/null -w '%{{http_code}}' {words} https://127.0.0.1:8443{path}")

        key = "-H 'Authorization: Bearer lab-only-key-of-the-one-client-of-the-lab'"
        question = """-H 'Content-Type: application/json' -d '{"model": "tiny", "prompt": "Hello", "max_tokens": 1}'"""
        assert status("/health") == "200"
        assert (status("/v1/completions", question), status("/v1/completions", f"{key} {question}")) == ("401", "200")
        assert (status("/v1/models"), status("/v1/models", key), status("/metrics", key)) == ("401", "200", "404")

    def test_grafana_took_the_provisioning(self, life: Nodes, first_run: Run, name: str) -> None:
        account = f"-u admin:{PASSWORD}"
        assert get(life, name, "http://127.0.0.1:3000/api/standin/problems", account) == []
        board = get(life, name, "http://127.0.0.1:3000/api/dashboards/uid/vllm-node-overview", account)["dashboard"]
        assert board["title"] == "vLLM node: overview"
        assert life.shell(name, "curl -s -o /dev/null -w '%{http_code}' 127.0.0.1:3000/api/search") == "401"

    def test_a_container_sees_the_gpus_it_was_given(self, life: Nodes, first_run: Run, name: str) -> None:
        seen = life.shell(name, "podman exec vllm-tiny sh -c 'ls /dev/nvidia[0-9]*'").split()
        assert seen == ["/dev/nvidia0"]
        listing = "import glob; print(*glob.glob(\"/dev/nvidia[0-9]*\"))"
        assert len(life.shell(name, f"podman exec dcgm-exporter python3 -c '{listing}'").split()) == 8
        metrics = life.shell(name, "curl -sf 127.0.0.1:9400/metrics")
        assert metrics.count("DCGM_FI_DEV_GPU_UTIL{") == 8
        assert metrics.count("DCGM_FI_PROF_SM_ACTIVE{") == 8

    def test_containers_are_confined(self, life: Nodes, first_run: Run, name: str) -> None:
        for container in json.loads(life.shell(name, f"podman inspect {' '.join(CONTAINERS)}")):
            config = container["HostConfig"]
            assert not config["Privileged"], container["Name"]
            assert config["ReadonlyRootfs"], container["Name"]
            assert "no-new-privileges" in config["SecurityOpt"], container["Name"]
            allowed = ["CAP_SYS_ADMIN"] if container["Name"] == "dcgm-exporter" else []
            assert (container["EffectiveCaps"] or []) == allowed, container["Name"]

    def test_secrets_are_nowhere_to_be_read(self, life: Nodes, first_run: Run, name: str) -> None:
        words = f"{PASSWORD}|{life.lab.registry_password}"
        places = "/etc/containers/systemd /etc/systemd/system /etc/vllm-node /run/systemd/generator /var/lib/vllm-node"
        assert life.shell(name, f"grep -rlE '{words}' {places} || true") == ""
        assert life.shell(name, f"podman inspect {' '.join(CONTAINERS)} | grep -cE '{words}' || true").strip() == "0"
        assert life.shell(name, f"journalctl --no-pager | grep -cE '{words}' || true").strip() == "0"
        assert not any(word in first_run.said for word in words.split("|"))

    def test_status_reads_it_over_ssh(self, life: Nodes, first_run: Run, name: str) -> None:
        before = life.tree(name)
        run = life.run("status", limit=name)
        assert run.code == 0, run.document
        told = json.dumps(run.document)
        assert all(unit in told for unit in UNITS)
        assert "drift" not in {unit.get("problem") for unit in run.host(name).get("units", [])}
        assert life.tree(name) == before
        assert life.shell(name, "ls /run/*.sock 2>/dev/null | grep vllm-node || true") == ""


def test_a_second_run_changes_nothing(life: Nodes, first_run: Run) -> None:
    before = {name: ids(life, name) for name in NAMES}
    run = life.run("up", limit=ALL)
    assert run.code == 0
    for name in NAMES:
        assert run.host(name)["counts"]["changed"] == 0
        assert set(before[name]) == set(CONTAINERS)
        assert ids(life, name) == before[name]


def test_verify_passes(life: Nodes, first_run: Run) -> None:
    run = life.run("verify", limit=ALL)
    assert run.code == 0, run.document


def _only_this_one_restarts(life: Nodes, container: str, variables: dict[str, Any]) -> None:
    before = {name: ids(life, name) for name in NAMES}
    run = life.run("up", limit=ALL, variables=variables)
    assert run.code == 0, run.document
    for name in NAMES:
        after = ids(life, name)
        assert {one for one in CONTAINERS if after[one] != before[name][one]} == {container}


def test_an_edited_config_restarts_only_its_container(life: Nodes, first_run: Run) -> None:
    _only_this_one_restarts(life, "prometheus", EDITED)


def test_a_rotated_secret_restarts_only_its_user(life: Nodes, first_run: Run) -> None:
    _only_this_one_restarts(life, "grafana", ROTATED)
    for name in NAMES:
        ask = "curl -s -o /dev/null -w '%{http_code}' -K - 127.0.0.1:3000/api/search"
        new = life.shell(name, f"""printf '%s' 'user = "admin:a \\"new\\" one \\\\ $HOME"' | {ask}""")
        old = life.shell(name, f"""printf '%s' 'user = "admin:{PASSWORD}"' | {ask}""")
        assert (new, old) == ("200", "401")


def test_what_was_edited_by_hand_is_put_right(life: Nodes, first_run: Run) -> None:
    for name in NAMES:
        life.shell(name, "sed -i s/:8000/:8999/ /etc/vllm-node/prometheus/prometheus.yml; systemctl stop dcgm-exporter")
    run = life.run("verify", limit=ALL, variables=ROTATED)
    assert run.code == 4, run.document
    run = life.run("up", limit=ALL, variables=ROTATED)
    assert run.code == 0, run.document
    for name in NAMES:
        assert life.host(name).service("dcgm-exporter").is_running
        assert "8999" not in life.shell(name, "cat /etc/vllm-node/prometheus/prometheus.yml")


def test_vllm_comes_back_after_it_was_killed(life: Nodes, first_run: Run) -> None:
    before = {name: ids(life, name)["vllm-tiny"] for name in NAMES}
    for name in NAMES:
        life.shell(name, "kill -9 $(podman inspect vllm-tiny --format '{{.State.Pid}}')")
    for name in NAMES:
        assert eventually(lambda name=name: answers(life, name))  # type: ignore[misc]
        assert ids(life, name)["vllm-tiny"] != before[name]


def test_everything_comes_back_after_a_reboot(life: Nodes, first_run: Run) -> None:
    boots = {name: life.shell(name, "cat /run/boot-mark 2>/dev/null || touch /run/boot-mark") for name in NAMES}
    for name in NAMES:
        life.host(name).run("systemctl reboot")
    for name in NAMES:
        assert eventually(lambda name=name: answers(life, name))  # type: ignore[misc]
        assert life.shell(name, "ls /run/boot-mark 2>/dev/null || true") == "", boots
        assert set(ids(life, name)) == set(CONTAINERS)
        assert life.host(name).service("gpu-cdi-ready").is_running
        assert life.shell(name, "ls /run/cdi") == "nvidia.yaml\n"


def test_a_removed_instance_goes_and_the_rest_stays(life: Nodes, first_run: Run) -> None:
    before = {name: ids(life, name) for name in NAMES}
    run = life.run("up", limit=ALL, variables={**ROTATED, "vllm_instances": []})
    assert run.code == 0, run.document
    for name in NAMES:
        after = ids(life, name)
        assert set(after) == set(CONTAINERS) - {"vllm-tiny"}
        assert after["grafana"] == before[name]["grafana"]
        assert not life.host(name).file("/etc/containers/systemd/vllm-tiny.container").exists


def test_teardown_keeps_what_it_is_asked_to_keep(life: Nodes, first_run: Run) -> None:
    run = life.run("down", "--keep", "images", "--keep", "data", limit=ALL)
    assert run.code == 0, run.document
    for name in NAMES:
        kept = run.host(name)["certificate"]["kept"]
        assert "volume prometheus-data" in kept
        assert len([one for one in kept if one.startswith("image ")]) == len(CONTAINERS)
        assert life.shell(name, "podman volume ls -q").split() != []


def test_up_again_with_what_was_kept(life: Nodes, first_run: Run) -> None:
    run = life.run("up", limit=ALL)
    assert run.code == 0, run.document
    for name in NAMES:
        assert answers(life, name)


def test_teardown_works_with_a_wedged_container_and_without_the_registry(
    life: Nodes, bare_trees: dict[str, dict[str, str]], first_run: Run
) -> None:
    for name in NAMES:
        life.shell(name, SLOW_CDI_STOP)
        life.shell(name, "kill -STOP $(podman top vllm-tiny hpid | tail -n +2)")
    life.lab.stop_registry()
    try:
        run = life.run("down", limit=ALL, variables={"teardown_stop_limit_s": 10})
        again = life.run("down", limit=ALL)
    finally:
        life.lab.start_registry()
    for name in NAMES:
        assert run.host(name)["certificate"] == {"clean": True, "left": [], "kept": [], "difference": []}
        assert again.host(name)["certificate"]["clean"]
        assert again.host(name)["counts"]["changed"] == 0
        assert life.tree(name) == bare_trees[name]
        listening = life.shell(name, "ss -H -lnt")
        assert not any(f":{port} " in listening for port in PORTS)
        assert life.shell(name, "podman ps -aq; podman images -q; podman volume ls -q; podman secret ls -q") == ""
    assert (run.code, again.code) == (0, 0)
