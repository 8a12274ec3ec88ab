"""The runner against real ansible-runner and real playbooks on localhost."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

from vllm_node import runner
from vllm_node.runner import (
    Ended,
    EventReader,
    FileDiff,
    HostResult,
    Line,
    NoHosts,
    PlaybookRun,
    PlayRequest,
    RunError,
    Stats,
    TaskStarted,
    Tick,
)

HOST = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}


class Project:
    """A folder with a playbook of one play."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "playbooks").mkdir()
        (root / "ansible.cfg").write_text("[defaults]\ngathering = explicit\n", encoding="utf-8")
        self.inventory = root / "hosts.yml"
        self.hosts("one", "two")

    def hosts(self, *names: str) -> None:
        host = {**HOST, "ansible_remote_tmp": str(self.root / "remote")}
        lines = ["all:", "  hosts:", *(f"    {name}: {host}" for name in names)]
        self.inventory.write_text("\n".join(lines), encoding="utf-8")

    def play(self, tasks: str, hosts: str = "all") -> None:
        text = f"- name: The play\n  hosts: {hosts}\n  gather_facts: false\n  tasks:\n{tasks}"
        (self.root / "playbooks" / "site.yml").write_text(text, encoding="utf-8")

    def request(self, **more: Any) -> PlayRequest:
        return PlayRequest("site", (str(self.inventory),), **more)

    def run(self, **more: Any) -> list[runner.Event]:
        with PlaybookRun(self.request(**more), self.root) as run:
            return list(run.events())


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


@pytest.fixture
def own_tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Temporary files of the run go here, so that what is left can be counted."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def results(events: list[runner.Event], task: str) -> dict[str, HostResult]:
    return {event.host: event for event in events if isinstance(event, HostResult) and event.task == task}


def test_outcomes_of_tasks_become_typed_events(project: Project) -> None:
    project.play(
        f"""
    - name: Changes
      ansible.builtin.copy:
        content: x
        dest: "{project.root}/{{{{ inventory_hostname }}}}.txt"
        mode: "0600"
    - name: Is skipped
      ansible.builtin.debug: {{msg: no}}
      when: false
    - name: Is ignored
      ansible.builtin.fail: {{msg: never mind}}
      ignore_errors: true
    - name: Fails on two
      ansible.builtin.fail: {{msg: "first line\\nsecond line"}}
      when: inventory_hostname == 'two'
"""
    )
    events = project.run()
    assert {host: result.state for host, result in results(events, "Changes").items()} == {
        "one": "changed",
        "two": "changed",
    }
    assert results(events, "Is skipped")["one"].state == "skipped"
    assert results(events, "Is ignored")["one"].state == "ignored"
    failed = results(events, "Fails on two")["two"]
    assert failed.state == "failed"
    assert failed.result["msg"] == "first line\nsecond line"
    assert failed.duration_s is not None
    assert 0 < failed.duration_s < 60
    (stats,) = [event for event in events if isinstance(event, Stats)]
    assert stats.hosts["one"].failed == 0
    assert stats.hosts["two"].failed == 1
    assert stats.hosts["one"].changed == 1
    assert isinstance(events[-1], Ended)
    assert events[-1].rc == 2
    assert events[-1].cancelled is False


def test_limit_tags_and_extra_vars_reach_ansible(project: Project) -> None:
    project.play(
        """
    - name: Tagged
      ansible.builtin.debug: {msg: "{{ wanted | type_debug }} {{ wanted }} {{ from_file }}"}
      tags: [yes_please]
    - name: Untagged
      ansible.builtin.debug: {msg: no}
"""
    )
    extra = project.root / "more.yml"
    extra.write_text("from_file: here\nwanted: loses\n", encoding="utf-8")
    events = project.run(
        limit="two", tags="yes_please", extra_vars={"wanted": ["a b", "'c'"]}, vars_files=(extra,)
    )
    tagged = results(events, "Tagged")
    assert list(tagged) == ["two"]
    assert tagged["two"].result["msg"] == "list ['a b', \"'c'\"] here"
    assert results(events, "Untagged") == {}


def test_check_mode_shows_a_diff_and_changes_nothing(project: Project) -> None:
    target = project.root / "never"
    project.play(f'    - ansible.builtin.copy: {{content: "new\\n", dest: "{target}", mode: "0600"}}\n')
    events = project.run(check=True, diff=True, limit="one")
    (diff,) = [event for event in events if isinstance(event, FileDiff)]
    assert diff.host == "one"
    assert diff.text.startswith("--- before")
    assert "+new" in diff.text
    assert not target.exists()


def test_lines_of_an_action_plugin_arrive_with_their_host(project: Project) -> None:
    actions = project.root / "playbooks" / "action_plugins"
    actions.mkdir()
    (actions / "talk.py").write_text(
        "from ansible.plugins.action import ActionBase\n"
        "from ansible.utils.display import Display\n"
        "class ActionModule(ActionBase):\n"
        "    def run(self, tmp=None, task_vars=None):\n"
        "        Display().display(task_vars['inventory_hostname'] + ': layer 3 of 8: ' + 'x' * 200)\n"
        "        return {'changed': False}\n",
        encoding="utf-8",
    )
    project.play("    - name: Talks\n      talk:\n")
    lines = [e for e in project.run() if isinstance(e, Line) and e.kind == "progress"]
    assert {line.host for line in lines} == {"one", "two"}
    assert all(line.text == "layer 3 of 8: " + "x" * 200 for line in lines)


def test_no_matching_host_is_told(project: Project) -> None:
    project.play("    - ansible.builtin.debug: {msg: hi}\n", hosts="elsewhere")
    events = project.run()
    assert [event for event in events if isinstance(event, NoHosts)] == [NoHosts("The play")]


def test_a_broken_inventory_is_an_error_and_not_an_empty_success(project: Project) -> None:
    project.play("    - ansible.builtin.debug: {msg: hi}\n")
    project.inventory.write_text("all: [\n", encoding="utf-8")
    events = project.run()
    assert isinstance(events[-1], Ended)
    assert events[-1].rc not in (0, None)
    assert not [event for event in events if isinstance(event, Stats)]
    assert any("No inventory was parsed" in event.text for event in events if isinstance(event, Line))


def test_a_missing_inventory_is_refused_before_anything_starts(project: Project) -> None:
    project.play("    - ansible.builtin.debug: {msg: hi}\n")
    request = PlayRequest("site", (str(project.root / "nowhere"),))
    with pytest.raises(RunError, match=r"no inventory .*nowhere.*Copy inventories/example"):
        PlaybookRun(request, project.root)


def test_an_inventory_of_the_project_is_found_from_anywhere(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = project.root / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    assert runner.find_inventory("hosts.yml", project.root) == str(project.inventory)
    (elsewhere / "hosts.yml").touch()
    assert runner.find_inventory("hosts.yml", project.root) == str(elsewhere / "hosts.yml")


def test_host_keys_stay_checked(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """ansible-runner sets this to False unless somebody else has set it."""
    monkeypatch.delenv("ANSIBLE_HOST_KEY_CHECKING", raising=False)
    msg = "{{ lookup('ansible.builtin.config', 'HOST_KEY_CHECKING') }} {{ lookup('env', 'ANSIBLE_CONFIG') }}"
    project.play(f'    - name: Look\n      ansible.builtin.debug: {{msg: "{msg}"}}\n')
    look = results(project.run(limit="one"), "Look")["one"]
    assert look.result["msg"] == f"True {project.root}/ansible.cfg"


def test_a_large_result_is_kept(project: Project) -> None:
    """ansible-runner drops results above 700 000 characters by default."""
    project.play("    - name: Big\n      ansible.builtin.debug: {msg: \"{{ 'x' * 900000 }}\"}\n")
    assert len(results(project.run(limit="one"), "Big")["one"].result["msg"]) == 900_000


def test_nothing_is_left_of_the_private_folder(project: Project, own_tmp: Path) -> None:
    project.play("    - ansible.builtin.debug: {msg: '{{ secret }}'}\n")
    seen: list[Path] = []
    with PlaybookRun(project.request(extra_vars={"secret": "s3cret"}), project.root) as run:
        for _event in run.events():
            seen += list(own_tmp.glob("vllm-node-run-*"))
    assert seen, "the test looked in the wrong place"
    assert not any(path.exists() for path in seen)


def test_extra_variables_are_not_on_the_command_line(project: Project, own_tmp: Path) -> None:
    project.play("    - ansible.builtin.command: sleep 2\n")
    commands: set[str] = set()
    with PlaybookRun(
        project.request(extra_vars={"secret": "s3cret-value"}, limit="one"), project.root
    ) as run:
        for _ in run.events(tick_s=0.2):
            commands |= set(command_lines(Path("ansible-playbook")))
    assert any("extra-vars.json" in command for command in commands), "the run was not seen"
    assert not any("s3cret-value" in command for command in commands)


def test_cancel_ends_the_run_and_the_work_on_the_host(project: Project) -> None:
    """Ansible's workers live in sessions of their own: killing Ansible alone leaves them at work."""
    mark = project.root / "mark"
    project.play(
        f"""
    - name: Long
      ansible.builtin.command: {{argv: [sh, -c, "touch {mark}-$$; sleep 47.11; echo {mark}"]}}
"""
    )
    begun = None
    with PlaybookRun(project.request(limit="one"), project.root) as run:
        for event in run.events(tick_s=0.1):  # noqa: B007 - the last one is looked at below
            if begun is None and list(project.root.glob("mark-*")):
                begun = time.monotonic()
                run.cancel()
        assert isinstance(event, Ended)
    assert begun is not None
    assert event.cancelled
    assert time.monotonic() - begun < 8
    deadline = time.monotonic() + 5
    while command_lines(mark) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert command_lines(mark) == []


def test_events_go_on_after_an_interrupt(project: Project) -> None:
    project.play("    - name: Nap\n      ansible.builtin.command: sleep 30\n")
    with PlaybookRun(project.request(limit="one"), project.root) as run:
        with pytest.raises(KeyboardInterrupt):
            interrupt_at_first_task(run)
        run.cancel()
        rest = list(run.events())
    assert isinstance(rest[-1], Ended)
    assert rest[-1].cancelled


def test_leaving_early_cancels(project: Project) -> None:
    project.play("    - name: Nap\n      ansible.builtin.command: sleep 31.7\n")
    begun = time.monotonic()
    with PlaybookRun(project.request(limit="one"), project.root) as run:
        for event in run.events(tick_s=0.1):
            if isinstance(event, TaskStarted):
                break
    assert time.monotonic() - begun < 15


def test_silence_is_told_by_ticks(project: Project) -> None:
    project.play("    - ansible.builtin.command: sleep 1\n")
    with PlaybookRun(project.request(limit="one"), project.root) as run:
        assert sum(isinstance(event, Tick) for event in run.events(tick_s=0.1)) >= 3


@pytest.mark.parametrize(
    ("printed", "host", "text"),
    [
        ("node1: pulling 3 of 8", "node1", "pulling 3 of 8"),
        ("[node1] pulling", "node1", "pulling"),
        ("[node1]: pulling", "node1", "pulling"),
        ("<node1> pulling", "node1", "pulling"),
        ("node1 | pulling", "node1", "pulling"),
        ("note: pulling", None, "note: pulling"),
        ("node10: pulling", None, "node10: pulling"),
        ("node1 pulling", None, "node1 pulling"),
    ],
)
def test_whose_line_it_is(printed: str, host: str | None, text: str) -> None:
    reader = EventReader()
    reader.read({"event": "runner_on_start", "event_data": {"host": "node1", "task": "t"}})
    raw = {"event": "verbose", "stdout": f"\x1b[0;32m{printed}\x1b[0m\r\n", "event_data": {"task": "t"}}
    assert reader.read(raw) == [Line(text, host, "progress")]


def test_a_warning_is_not_progress() -> None:
    reader = EventReader()
    raw = {"event": "warning", "stdout": "[WARNING]: careful", "event_data": {"task": "t"}}
    assert reader.read(raw) == [Line("[WARNING]: careful", None, "warning")]


def interrupt_at_first_task(run: PlaybookRun) -> None:
    for event in run.events(tick_s=0.1):
        if isinstance(event, TaskStarted):
            signal.raise_signal(signal.SIGINT)


def command_lines(part: Path) -> list[str]:
    """Command lines of running processes in which this path occurs."""
    listed = subprocess.run(["ps", "-eo", "args", "-ww"], capture_output=True, text=True, check=True)
    return [line for line in listed.stdout.splitlines() if str(part) in line]
