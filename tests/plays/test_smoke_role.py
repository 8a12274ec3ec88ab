"""The role `smoke` in a real play on this machine, with a server that answers as vLLM does, or not quite."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.model_server import Model, serving
from tests.unit.node_code import ROOT

STARTED = {"actions": ["systemd reloaded", "vllm-chat.service started"], "states": {}}
PLAY = [
    {
        "name": "The end of a bring-up",
        "hosts": "gpu_nodes",
        "gather_facts": False,
        "tasks": [
            {"name": "Smoke", "ansible.builtin.include_role": {"name": "smoke"}},
            {"name": "The bring-up goes on", "ansible.builtin.debug": {"msg": "it went on"}},
        ],
    }
]


@pytest.fixture
def model() -> Iterator[Model]:
    with serving(Model()) as made:
        yield made


def play(folder: Path, model: Model, *words: str, **variables: Any) -> tuple[int, str]:
    """Exit code and output of the role after a bring-up that started the one instance."""
    host = {
        "ansible_connection": "local",
        "ansible_python_interpreter": sys.executable,
        "ansible_remote_tmp": str(folder / "remote"),
        "vllm_instances": [{"name": "chat", "port": int(model.url.rpartition(":")[2]), "gpus": [], "model": "/no/model"}],
        "images_lock": {"vllm": {"repository": "r/vllm", "tag": "v1", "digest": "sha256:" + "1" * 64}},
        "stack_result": STARTED,
        "prometheus_enabled": False,
        "prometheus_scrape_interval": "1s",
        "alertmanager_enabled": False,
        "benchmark_output": str(folder / "runs"),
        **variables,
    }
    (folder / "hosts.json").write_text(json.dumps({"gpu_nodes": {"hosts": {"gpu1": host}}}))
    (folder / "play.yml").write_text(json.dumps(PLAY))
    done = subprocess.run(
        [
            *(str(Path(sys.executable).with_name("ansible-playbook")), "-i", str(folder / "hosts.json")),
            *(str(folder / "play.yml"), *words),
        ],
        cwd=ROOT,
        env={**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "PYTHONPATH": str(ROOT), "COLUMNS": "300"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def test_an_instance_that_serves_others_is_left_alone_and_the_bring_up_goes_on(model: Model, tmp_path: Path) -> None:
    model.running = 3
    code, said = play(tmp_path, model)
    assert code == 0, said
    assert "gpu1: chat: not measured: instance chat serves others at the moment (3.0 running" in said
    assert "it went on" in said
    assert not (tmp_path / "runs").exists()


def test_what_cannot_be_measured_is_told_and_the_bring_up_goes_on(model: Model, tmp_path: Path) -> None:
    # Nobody can say which tokens a model has whose folder is not there.
    code, said = play(tmp_path, model)
    assert code == 0, said
    assert "gpu1: chat: not measured: max_model_len of the model is not known" in said
    assert "it went on" in said


def test_a_wrong_answer_ends_the_bring_up_before_anything_is_measured(model: Model, tmp_path: Path) -> None:
    model.fault = "counts wrong"
    model.running = 3
    code, said = play(tmp_path, model)
    assert code == 2, said
    assert "gpu1: instance chat fails 'usage counts the tokens': seen 8 prompt and 7 answer tokens" in said
    assert "next: look at the instance's args" in said
    assert "serves others" not in said
    assert "it went on" not in said


@pytest.mark.parametrize(
    ("variables", "why"),
    [
        ({"smoke_benchmark": False}, "smoke_benchmark is false"),
        ({"stack_result": {"actions": ["vllm-chat-2.service started", "chat.service restarted"], "states": {}}}, "it has not started in this run"),
    ],
)
def test_nothing_is_measured_that_has_not_started_or_is_not_wanted(
    model: Model, tmp_path: Path, variables: dict[str, Any], why: str
) -> None:
    code, said = play(tmp_path, model, **variables)
    assert code == 0, said
    assert f"gpu1: chat: not measured: {why}; no earlier verdict is known here" in said
    assert "chat answered (32 tokens): 'an answer to What is a GPU node for?'" in said


def test_check_mode_asks_nobody(model: Model, tmp_path: Path) -> None:
    code, said = play(tmp_path, model, "--check")
    assert code == 0, said
    assert model.answered == 0
    assert "not measured" not in said
