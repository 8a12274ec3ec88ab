"""Starting a stack: what systemd is told to do, and whether a unit loads, is dead or is ready."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.unit.role_code import calls, load, manifest_code, on_path, program, run_module
from tests.unit.web import Site, nobody, serving

TARGET, UNIT = "vllm-node.target", "vllm-chat.service"
# Each unit has a file with its properties; a reload makes every unit known, where the test allows it.
SYSTEMCTL = """
cd {folder}
case "$1" in
  show)
    shift 3
    for unit; do
      printf 'Id=%s\\nLoadState=not-found\\nActiveState=inactive\\n' "$unit"
      [ ! -e "$unit" ] || /bin/cat "$unit"
      [ ! -e reloaded ] || printf 'LoadState=loaded\\nNeedDaemonReload=no\\n'
      echo
    done;;
  daemon-reload) [ ! -e reload-helps ] || : > reloaded;;
  is-enabled) [ -e enabled ];;
esac
"""


class Node:
    """A node whose systemd knows `units` ({unit: properties}) and whose podman runs `containers` ({name: inputs})."""

    def __init__(self, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.root, self.capsys, self.programs = root, capsys, root / "bin"
        self.module = load("roles/stack/library/stack_step.py")
        self.module.UNIT_FOLDER, self.module.GENERATED = str(root / "quadlets"), str(root / "generated")
        self.module.STORAGE = str(root)
        for folder in ("quadlets", "generated"):
            (root / folder).mkdir()
        program(self.programs, "systemctl", SYSTEMCTL.format(folder=root / "systemd"))
        program(self.programs, "journalctl", "echo one; echo last line")
        self.systemd({TARGET: active(), UNIT: active()})
        self.podman()

    def systemd(self, units: dict[str, dict[str, str]], enabled: bool = True, reload_helps: bool = True) -> None:
        shutil.rmtree(self.root / "systemd", ignore_errors=True)
        (self.root / "systemd").mkdir()
        for unit, properties in units.items():
            text = "".join(f"{name}={value}\n" for name, value in properties.items())
            (self.root / "systemd" / unit).write_text(text)
        for name, wanted in (("enabled", enabled), ("reload-helps", reload_helps)):
            if wanted:
                (self.root / "systemd" / name).touch()

    def podman(self, **containers: str) -> None:
        listed = [
            {"Names": [name], "Id": f"id-{name}", "Labels": {"io.vllm-node.inputs": inputs}}
            for name, inputs in containers.items()
        ]
        program(self.programs, "podman", f"echo '{json.dumps(listed)}'")

    def quadlet(self, unit: str = UNIT, inputs: str = "one", generated: bool = True) -> Path:
        """A Quadlet file that systemd has read since it was written, if `generated`."""
        path = self.root / "quadlets" / unit.replace(".service", ".container")
        path.write_text(f"[Container]\nLabel=io.vllm-node.inputs={inputs}\n")
        made = self.root / "generated" / unit
        made.write_text(f"[Unit]\nSourcePath={path}\n")
        os.utime(path, (1000, 1000))
        os.utime(made, (2000, 2000) if generated else (500, 500))
        return path

    def step(
        self, *, begin: bool = True, check: bool = False, ready: Any = None, gpus: tuple[str, ...] = ()
    ) -> dict[str, Any]:
        units = [{"unit": UNIT, "ready": ready, "gpus": list(gpus)}]
        arguments = {
            "target": TARGET,
            "units": units,
            "state_dir": str(self.root / "state"),
            "wait_s": 0,
            "begin": begin,
        }
        return run_module(self.module, self.capsys, **arguments, _ansible_check_mode=check)

    def told(self) -> list[list[str]]:
        """What systemd was told to do, without the questions."""
        return [call[1:] for call in calls(self.programs, "systemctl") if call[1] not in ("show", "is-enabled")]


def active(**more: str) -> dict[str, str]:
    return {"LoadState": "loaded", "ActiveState": "active", "SubState": "running", "NRestarts": "0", **more}


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Node:
    on_path(monkeypatch, tmp_path / "bin")
    monkeypatch.setattr("os.fsync", lambda _: None)
    return Node(tmp_path, capsys)


def test_a_stack_that_runs_is_left_alone(node: Node) -> None:
    node.quadlet()
    node.podman(**{"vllm-chat": "one"})
    told = node.step()
    assert (told["changed"], told["actions"], node.told()) == (False, [], [])
    assert told["states"] == {UNIT: {"state": "ready", "detail": "", "restarts": 0, "container": "id-vllm-chat"}}


def test_a_stopped_unit_is_started(node: Node) -> None:
    node.quadlet()
    node.systemd({TARGET: active(), UNIT: active(ActiveState="inactive", SubState="dead")})
    assert node.step()["actions"] == [f"{UNIT} started"]
    assert node.told() == [["start", "--no-block", UNIT]]


def test_a_container_with_other_inputs_is_restarted(node: Node) -> None:
    node.quadlet(inputs="two")
    node.podman(**{"vllm-chat": "one"})
    assert node.step()["actions"] == [f"{UNIT} restarted"]
    # Else the sixth change within the interval of StartLimitBurst= would be refused by systemd.
    assert node.told() == [["reset-failed", UNIT], ["restart", "--no-block", UNIT]]


def test_a_failed_unit_is_forgiven_and_started(node: Node) -> None:
    node.quadlet()
    node.systemd({TARGET: active(), UNIT: active(ActiveState="failed", NRestarts="5")})
    assert node.step()["actions"] == [f"{UNIT} started"]
    assert node.told() == [["reset-failed", UNIT], ["start", "--no-block", UNIT]]


def test_a_unit_in_a_crash_loop_gets_a_fresh_start(node: Node) -> None:
    node.quadlet()
    looping = active(ActiveState="activating", SubState="auto-restart", NRestarts="4")
    node.systemd({TARGET: active(), UNIT: looping})
    assert node.step()["actions"] == [f"{UNIT} restarted"]
    assert node.told() == [["reset-failed", UNIT], ["restart", "--no-block", UNIT]]


def test_a_unit_that_is_being_started_is_waited_for(node: Node) -> None:
    node.quadlet()
    node.systemd({TARGET: active(), UNIT: active(ActiveState="activating", SubState="start")})
    told = node.step()
    assert told["actions"] == []
    assert told["states"][UNIT]["state"] == "loading"
    assert told["states"][UNIT]["detail"] == "activating (start)"


def test_the_target_is_recorded_before_it_is_enabled(node: Node) -> None:
    node.quadlet()
    node.systemd({TARGET: active(ActiveState="inactive"), UNIT: active()}, enabled=False)
    told = node.step()
    assert told["actions"] == [f"{TARGET} enabled", f"{TARGET} started"]
    assert manifest_code().Manifest.load(str(node.root / "state")).data["units"] == [TARGET]


RELOADS = ["changed file", "unknown", "told by systemd", "target", "orphan"]


@pytest.mark.parametrize("why", [*RELOADS, "nothing"])
def test_systemd_is_reloaded_where_its_knowledge_is_old_and_only_there(node: Node, why: str) -> None:
    node.quadlet(generated=why != "changed file")
    unit = active(LoadState="not-found" if why == "unknown" else "loaded")
    unit["NeedDaemonReload"] = "yes" if why == "told by systemd" else "no"
    target = active(NeedDaemonReload="yes" if why == "target" else "no")
    node.systemd({TARGET: target, UNIT: unit})
    if why == "orphan":
        node.quadlet("vllm-old.service").unlink()
    assert node.step()["actions"] == (["systemd reloaded"] if why in RELOADS else [])
    assert node.told() == ([["daemon-reload"]] if why in RELOADS else [])


def test_somebody_elses_generated_unit_is_no_orphan_of_ours(node: Node) -> None:
    node.quadlet()
    (node.root / "generated/theirs.service").write_text("[Unit]\nSourcePath=/etc/init.d/theirs\n")
    (node.root / "generated/plain.service").write_text("[Unit]\n")
    assert node.step()["actions"] == []


def test_a_unit_that_systemd_does_not_know_after_a_reload_is_an_error(node: Node) -> None:
    node.systemd({TARGET: active()}, reload_helps=False)
    told = node.step()
    assert told["failed"] is True
    assert told["msg"] == f"systemd does not know {UNIT} after a reload"


def test_a_reload_that_fails_is_an_error(node: Node) -> None:
    node.quadlet(generated=False)
    program(node.programs, "systemctl", "[ $1 != daemon-reload ] || { echo no bus >&2; exit 1; }")
    assert "systemctl daemon-reload: no bus" in node.step()["msg"]


@pytest.mark.parametrize("begin", [True, False])
def test_a_podman_that_fails_is_not_taken_for_one_without_containers(node: Node, begin: bool) -> None:
    node.quadlet()
    program(node.programs, "podman", "echo 'Error: database is locked' >&2; exit 125")
    told = node.step(begin=begin)
    assert (told["failed"], told["msg"]) == (True, "podman ps: Error: database is locked")
    assert node.told() == []


def test_check_mode_tells_what_it_would_do_and_does_nothing(node: Node) -> None:
    node.systemd({}, enabled=False)
    told = node.step(check=True)
    assert told["actions"] == ["systemd reloaded", f"{TARGET} enabled", f"{UNIT} started", f"{TARGET} started"]
    assert node.told() == []
    assert not (node.root / "state").exists()


def test_a_later_step_only_looks(node: Node) -> None:
    node.systemd({})
    told = node.step(begin=False)
    assert (told["actions"], node.told()) == ([], [])


def test_newer_than_generated_is_told_by_the_files(node: Node) -> None:
    path = node.quadlet()
    assert not node.module.newer_than_generated(UNIT)
    os.utime(path, (3000, 3000))
    assert node.module.newer_than_generated(UNIT)
    (node.root / "generated" / UNIT).unlink()
    assert node.module.newer_than_generated(UNIT)
    path.unlink()
    assert not node.module.newer_than_generated(UNIT)  # a plain unit has no Quadlet file


def look(node: Node, ready: Any = None, **properties: str) -> dict[str, Any]:
    found: dict[str, Any] = node.module.look_at(UNIT, {"ready": ready}, active(**properties))
    return found


def test_a_failed_unit_is_dead_and_shows_its_last_lines(node: Node) -> None:
    state = look(node, ActiveState="failed", Result="exit-code", NRestarts="1")
    assert (state["state"], state["log"]) == ("dead", "one\nlast line")
    assert state["detail"] == "failed (exit-code), restarted 1 times"


@pytest.mark.parametrize(("restarts", "state"), [("0", "loading"), ("2", "loading"), ("3", "dead")])
def test_a_third_restart_is_not_bad_luck_any_more(node: Node, restarts: str, state: str) -> None:
    assert look(node, ActiveState="activating", SubState="auto-restart", NRestarts=restarts)["state"] == state


def test_a_unit_that_came_back_after_many_restarts_is_not_dead(node: Node) -> None:
    assert look(node, NRestarts="7") == {"state": "ready", "detail": "", "restarts": 7}


def test_an_active_unit_that_does_not_answer_loads_and_tells_its_last_line(node: Node) -> None:
    state = look(node, {"kind": "http", "url": nobody()}, InvocationID="feed")
    assert state["state"] == "loading"
    assert state["detail"] == "not listening yet - last line"
    assert calls(node.programs, "journalctl")[-1][-1] == "_SYSTEMD_INVOCATION_ID=feed"


VLLM = {"kind": "vllm", "model": "chat"}
SHARDS = "Loading safetensors checkpoint shards:  38% Completed | 3/8 [00:30<00:50, 10.00s/it]"


def test_a_vllm_that_loads_tells_its_phase_and_not_that_nobody_listens(node: Node) -> None:
    program(node.programs, "journalctl", f"echo '{SHARDS}'; echo something else")
    state = look(node, {**VLLM, "url": nobody()}, InvocationID="feed")
    assert (state["state"], state["detail"]) == ("loading", "loading shard 4 of 8")
    assert state["phase"] == {"phase": "weights", "text": "loading shard 4 of 8", "done": 3, "total": 8, "left_s": 50}
    assert state["log"].splitlines() == [SHARDS, "something else"]


def test_of_a_long_journal_no_more_is_read_than_fits_and_no_half_line(node: Node) -> None:
    program(node.programs, "journalctl", "i=0; while [ $i -lt 900 ]; do printf '%0200d\\n' 7; i=$((i+1)); done")
    log = look(node, {"kind": "http", "url": nobody()})["log"]
    assert 60000 < len(log) <= node.module.MOST_CHARACTERS
    assert {len(line) for line in log.splitlines()} == {200}
    assert f"--lines={node.module.MOST_LINES}" in calls(node.programs, "journalctl")[-1]


def test_a_vllm_that_answers_something_else_tells_both(node: Node) -> None:
    program(node.programs, "journalctl", f"echo '{SHARDS}'")
    with serving(Site({"/v1/models": (503, "oh")})) as site:
        assert look(node, {**VLLM, "url": site.url})["detail"] == "/v1/models answers 503 - loading shard 4 of 8"


@pytest.mark.parametrize("active", ["activating", "active"])
def test_after_a_restart_the_starts_before_it_are_shown_as_well(node: Node, active: str) -> None:
    state = look(node, {"kind": "http", "url": nobody()}, ActiveState=active, NRestarts="1", InvocationID="feed")
    assert (state["state"], state["log"]) == ("loading", "one\nlast line")
    assert calls(node.programs, "journalctl")[-1][-1] == f"--unit={UNIT}"


@pytest.mark.parametrize(
    ("journal", "said"),
    [
        ("Loading weights: 40 %\n", "Loading weights: 40 %"),
        ("Loading\n2026-01-02 03:04:05.678 +0000 UTC m=+0.1 container health_status feed\n", "Loading"),
        ("Loading\nconmon feed <ninfo>: health check\n\n", "Loading"),
        ("2026-01-02 03:04:05.678 +0000 UTC m=+0.1 container start feed\n", ""),
        ("", ""),
    ],
)
def test_events_of_podman_are_not_a_programs_words(node: Node, journal: str, said: str) -> None:
    assert node.module.own_words(journal) == said


def test_an_active_unit_that_answers_is_ready(node: Node) -> None:
    with serving(Site({"/": (200, "ok")})) as site:
        assert look(node, {"kind": "http", "url": site.url + "/"})["state"] == "ready"


def test_a_program_that_hangs_is_given_up(node: Node) -> None:
    program(node.programs, "sleep", "exec /bin/sleep 60")
    done = node.module.run("sleep", limit_s=0.2)
    assert (done.returncode, done.stderr) == (124, "sleep did not end within 0 s")


@pytest.mark.parametrize(
    ("code", "said", "state"),
    [
        (0, "GPU 0: NVIDIA H100", "ready"),
        (255, "Failed to initialize NVML: Unknown Error", "dead"),
        (127, "nvidia-smi: not found", "ready"),
    ],
)
def test_a_container_that_lost_its_gpus_is_not_ready(node: Node, code: int, said: str, state: str) -> None:
    program(node.programs, "podman", f"[ $1 = exec ] || {{ echo '[]'; exit 0; }}; echo '{said}'; exit {code}")
    told = node.step(gpus=("0",))["states"][UNIT]
    assert told["state"] == state
    assert told.get("log") == (said if state == "dead" else None)


@pytest.mark.parametrize(
    ("written", "started", "restarted"),
    [(1000, 2000, False), (2000, 1000, True), (2000.5, 2000, False), (None, 1000, False), (2000, 0, False)],
)
def test_journald_is_restarted_when_its_limit_is_newer_than_itself(
    node: Node, written: float | None, started: int, restarted: bool
) -> None:
    node.quadlet()
    node.podman(**{"vllm-chat": "one"})
    limit = node.root / "50-vllm-node.conf"
    node.module.JOURNAL_LIMIT = str(limit)
    if written is not None:
        limit.touch()
        os.utime(limit, (written, written))
    asked = f'case "$*" in *timestamp*) {f"echo @{started}" if started else ":"}; exit;; esac'
    program(node.programs, "systemctl", asked + SYSTEMCTL.format(folder=node.root / "systemd"))
    assert node.step()["actions"] == (["systemd-journald restarted"] if restarted else [])
    assert node.told() == ([["restart", "systemd-journald"]] if restarted else [])
