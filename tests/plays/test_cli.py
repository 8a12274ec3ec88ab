"""The command line as a user calls it: real ansible-runner, playbooks of a few lines, local hosts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from vllm_node import cli
from vllm_node.exit_codes import ExitCode

# The command with another project than this checkout.
CALL = (
    "import sys, pathlib, vllm_node.runner as runner; "
    "root = pathlib.Path(sys.argv.pop(1)); runner.project_root = lambda: root; "
    "from vllm_node.cli import main; main()"
)
# Gives back what it is given, as a module of a role would.
GIVE = """
from ansible.plugins.action import ActionBase
class ActionModule(ActionBase):
    def run(self, tmp=None, task_vars=None):
        return {"changed": False, **self._task.args}
"""
FINDING = {
    "id": "swap.on",
    "level": "fail",
    "host": "one",
    "seen": "8 GiB of swap",
    "why": "slow",
    "mend": "swapoff -a",
}


class Project:
    """A project with any playbook, and an inventory of two hosts."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "playbooks" / "action_plugins").mkdir(parents=True)
        (root / "playbooks" / "action_plugins" / "give.py").write_text(GIVE, encoding="utf-8")
        (root / "ansible.cfg").write_text("[defaults]\ngathering = explicit\n", encoding="utf-8")
        host = {
            "ansible_connection": "local",
            "ansible_python_interpreter": sys.executable,
            "ansible_remote_tmp": str(root / "remote"),
        }
        hosts = {"all": {"hosts": {"one": host, "two": host}}}
        self.inventory = root / "hosts.yml"
        self.inventory.write_text(json.dumps(hosts), encoding="utf-8")

    def play(self, name: str, *tasks: dict[str, Any]) -> None:
        play = {"name": "The play", "hosts": "all", "gather_facts": False, "tasks": list(tasks)}
        (self.root / "playbooks" / f"{name}.yml").write_text(json.dumps([play]), encoding="utf-8")

    def command(self, *words: str) -> list[str]:
        return [sys.executable, "-c", CALL, str(self.root), *words, "-i", str(self.inventory)]

    def call(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(self.command(*words), capture_output=True, text=True, check=False, timeout=60)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


def task(name: str, **result: Any) -> dict[str, Any]:
    return {"name": name, "give": result}


def test_up_tells_progress_on_stderr_and_the_outcome_on_stdout(project: Project) -> None:
    report = {
        "host": "{{ inventory_hostname }}",
        "rows": [{"unit": "vllm-tiny.service", "state": "healthy", "address": "127.0.0.1:8000"}],
        "question": "Who?",
        "answers": [{"text": "Me.", "model": "tiny", "tokens": 2}],
    }
    project.play("site", task("Unit is installed", changed=True), task("Report", vllm_node_report=report))
    done = project.call("up")
    assert done.returncode == ExitCode.OK, done.stderr
    assert "one: Unit is installed … changed (" in done.stderr
    assert "Unit is installed" not in done.stdout
    assert "one: it answered: Me." in done.stdout
    assert done.stdout.splitlines()[-1].startswith("up: done")


def test_json_is_one_document_and_nothing_else(project: Project) -> None:
    project.play("site", task("Works", changed=True), task("Breaks", failed=True, msg="first\nsecond"))
    done = project.call("up", "--json", "--limit", "two")
    document = json.loads(done.stdout)
    assert done.returncode == document["exit_code"] == ExitCode.TASK_FAILED
    assert list(document["hosts"]) == ["two"]
    assert document["hosts"]["two"]["failure"] == {
        "task": "Breaks",
        "kind": "task",
        "message": "first\nsecond",
    }


def test_preflight_gives_the_findings_of_each_host(project: Project) -> None:
    findings = "{{ [finding] if inventory_hostname == 'one' else [] }}"
    step = task("Judge", findings=findings, failed="{{ inventory_hostname == 'one' }}", msg="a table")
    project.play("preflight", {**step, "vars": {"finding": FINDING}})
    done = project.call("preflight", "--json")
    document = json.loads(done.stdout)
    assert done.returncode == ExitCode.VALIDATION
    assert document["hosts"]["one"]["findings"] == [FINDING]
    assert document["hosts"]["two"]["findings"] == []
    done = project.call("preflight")
    assert "one: FAIL swap.on\n    seen: 8 GiB of swap\n" in done.stdout
    assert "two: nothing to complain about" in done.stdout


def test_a_wrong_variable_is_a_validation_failure(project: Project) -> None:
    """With Ansible's own check of argument specs, whatever it returns in this version."""
    check = {
        "name": "Check",
        "ansible.builtin.validate_argument_spec": {
            "argument_spec": {"port": {"type": "int"}},
            "provided_arguments": {"port": "eighty"},
        },
    }
    project.play("site", check)
    done = project.call("up")
    assert done.returncode == ExitCode.VALIDATION
    assert "eighty" in done.stdout
    assert "nothing was changed on it" in done.stdout


def test_down_keeps_what_it_is_told_to_and_tells_what_is_left(project: Project) -> None:
    certificate = {"clean": False, "left": ["/etc/x"], "kept": "{{ teardown_keep }}", "difference": []}
    project.play("teardown", task("Certificate", certificate=certificate, report_files=["/tmp/r.json"]))
    done = project.call("down", "--keep", "images", "--keep", "data", "-l", "one")
    assert done.returncode == ExitCode.LEFT_OVER
    for line in (
        "left over: /etc/x",
        "kept on purpose: images",
        "kept on purpose: data",
        "report: /tmp/r.json",
    ):
        assert line in done.stdout


def test_check_mode_says_so_to_the_playbook(project: Project) -> None:
    project.play("verify", task("Look", failed="{{ ansible_check_mode }}"))
    project.play("site", task("Look", failed="{{ not ansible_check_mode or not ansible_diff_mode }}"))
    assert project.call("up", "--check").returncode == ExitCode.OK
    assert project.call("up", "--check", "--no-diff").returncode == ExitCode.TASK_FAILED
    assert project.call("verify").returncode == ExitCode.OK


def test_an_unreachable_host_has_its_own_code(project: Project) -> None:
    hosts = {"all": {"hosts": {"far": {"ansible_host": "127.0.0.1", "ansible_port": 1}}}}
    project.inventory.write_text(json.dumps(hosts), encoding="utf-8")
    project.play("site", {"name": "Ping", "ansible.builtin.ping": {}})
    done = project.call("up")
    assert done.returncode == ExitCode.UNREACHABLE
    assert "Connection refused" in done.stdout
    assert "far: not reached" in done.stdout


@pytest.mark.parametrize("wrong", ["-e nonsense", "-e @nowhere.yml", "-e {a", "--keep all", "--nonsense"])
def test_a_wrong_call_is_a_usage_error(project: Project, wrong: str) -> None:
    project.play("teardown", task("Never"))
    done = project.call("down", *wrong.split())
    assert done.returncode == ExitCode.USAGE
    assert "Error:" in done.stderr


def test_a_missing_inventory_and_a_limit_without_hosts_are_usage_errors(project: Project) -> None:
    project.play("site", task("Never"))
    done = project.call("up", "-i", "nowhere")
    assert done.returncode == ExitCode.USAGE
    assert "Copy inventories/example" in done.stderr
    done = project.call("up", "--limit", "nobody")
    assert done.returncode == ExitCode.USAGE
    assert "nobody" in done.stdout


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_stops_the_work_and_says_how_to_go_on(project: Project, number: signal.Signals) -> None:
    mark = project.root / "begun"
    nap = ["sh", "-c", f"touch {mark}; sleep 83.21"]
    project.play("site", {"name": "Takes long", "ansible.builtin.command": {"argv": nap}})
    process = subprocess.Popen(
        project.command("up", "-l", "one"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 30
    while not mark.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(number)
    out, err = process.communicate(timeout=20)
    assert process.returncode == ExitCode.INTERRUPTED
    assert "Ansible is asked to stop" in err
    assert "one: was in the middle of: Takes long" in out
    assert "To go on: `vllm-node up -i " in out
    assert "vllm-node down" in out
    listed = subprocess.run(["ps", "-eo", "args", "-ww"], capture_output=True, text=True, check=True).stdout
    assert str(mark) not in listed


def test_extra_variables_of_all_kinds(tmp_path: Path) -> None:
    file = tmp_path / "vars.yml"
    file.touch()
    given = ("a=1 b=2", '{"c": [1], "a": true}', f"@{file}", "d=x=y", "e=")
    values, files = cli.parse_extra_vars(given)
    assert values == {"a": True, "c": [1], "d": "x=y", "e": ""}
    assert files == (file,)


def test_the_help_names_each_exit_code() -> None:
    for words in (["--help"], ["up", "--help"], ["status", "--help"]):
        text = CliRunner().invoke(cli.cli, words).output
        for code in ExitCode:
            assert code.meaning in text, words


def test_the_lab_is_imported_only_when_asked_for() -> None:
    script = (
        "import sys; from vllm_node.cli import cli; from click.testing import CliRunner; "
        "assert CliRunner().invoke(cli, ['up', '--help']).exit_code == 0; "
        "sys.exit('vllm_node.lab.cli' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_a_lab_that_cannot_be_imported_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vllm_node.lab.cli", None)
    assert "not available here" in CliRunner().invoke(cli.cli, ["--help"]).output
    result = CliRunner().invoke(cli.cli, ["lab", "up", "--nodes", "2"])
    assert result.exit_code == ExitCode.INTERNAL
    assert "pip install 'vllm-node[lab]'" in result.output
    assert CliRunner().invoke(cli.cli, ["up", "--help"]).exit_code == 0


def test_status_of_this_machine_and_of_one_that_is_not_there(project: Project) -> None:
    hosts = {
        "all": {
            "hosts": {
                "far": {"ansible_host": "127.0.0.1", "ansible_port": 1},
                "unknown": {"ansible_host": "{{ nowhere }}"},
            }
        }
    }
    project.inventory.write_text(json.dumps(hosts), encoding="utf-8")
    done = project.call("status", "--json")
    document = json.loads(done.stdout)
    assert done.returncode == document["exit_code"] == ExitCode.UNREACHABLE
    assert document["hosts"]["far"]["state"] == "unreachable"
    assert "Connection refused" in document["hosts"]["far"]["notes"][0]["seen"]
    assert "only Ansible can fill" in document["hosts"]["unknown"]["notes"][0]["seen"]
    done = project.call("status", "--limit", "far")
    assert "ssh -p 1 127.0.0.1" in done.stdout


def test_status_without_hosts_is_a_usage_error(project: Project) -> None:
    done = project.call("status", "--limit", "nobody")
    assert done.returncode == ExitCode.USAGE
    assert "Error:" in done.stderr


def call_main(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> int | str | None:
    @click.command()
    def broken() -> None:
        raise error

    monkeypatch.setattr(cli, "cli", broken)
    monkeypatch.setattr(sys, "argv", ["vllm-node"])
    before = signal.getsignal(signal.SIGTERM)
    try:
        with pytest.raises(SystemExit) as caught:
            cli.main()
    finally:
        signal.signal(signal.SIGTERM, before)
    return caught.value.code


def test_an_unexpected_error_is_an_internal_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call_main(monkeypatch, RuntimeError("boom")) == ExitCode.INTERNAL
    told = capsys.readouterr().err
    assert "RuntimeError: boom" in told
    assert "Traceback" not in told
    monkeypatch.setenv("VLLM_NODE_DEBUG", "1")
    call_main(monkeypatch, RuntimeError("boom"))
    assert "Traceback" in capsys.readouterr().err


def test_an_interrupt_outside_a_run_has_the_same_code(monkeypatch: pytest.MonkeyPatch) -> None:
    assert call_main(monkeypatch, KeyboardInterrupt()) == ExitCode.INTERRUPTED


@pytest.mark.parametrize("words", [["up"], ["up", "--json"]])
def test_a_reader_that_goes_away_does_not_change_the_exit_code(project: Project, words: list[str]) -> None:
    project.play("site", task("Breaks", failed=True, msg="x" * 100_000))
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        project.command(*words), stdout=writing, stderr=subprocess.PIPE, text=True, check=False, timeout=60
    )
    os.close(writing)
    assert done.returncode == ExitCode.TASK_FAILED
    assert "Traceback" not in done.stderr
