"""Questions to images: asked once, kept, asked again when something differs; and what the answers are taken for."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.unit.factories import digest, snapshot, variables
from tests.unit.role_code import ROOT, calls, load, manifest_code, on_path, program, run_module
from vllm_node.preflight import Finding, judge, wanted_from
from vllm_node.serving import cuda, probe

REFERENCE = "registry.site.example:5000/site/vllm@sha256:" + "0a" * 32
PAGE = ROOT / "tests/unit/data/vllm-help.txt"
GOOD = {"python": "3.12.3", "vllm": "0.32.0", "cuinit": 0, "libcuda": "/usr/lib64/libcuda.so.1"}


class Node:
    """A node whose podman has the image, and whose containers answer as a test says."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.capsys = folder, capsys
        self.module = load("roles/image_probe/library/image_probe.py")
        self.module.STORAGE = str(folder)
        self.state, self.bin = folder / "state", folder / "bin"
        on_path(monkeypatch, self.bin)
        program(self.bin, "systemctl", 'case "$*" in show*) echo LoadState=loaded;; esac')
        self.says()

    def says(self, answer: str = json.dumps(GOOD), *, code: int = 0, page: str | None = None, there: bool = True) -> None:
        """What containers give: `answer` with `code`; and the page."""
        for name, text in (("answer", answer), ("page", PAGE.read_text() if page is None else page)):
            (self.folder / name).write_text(text)
        body = f"""
case "$*" in
"image exists"*) exit {int(not there)};;
rm*) exit 0;;
*--entrypoint*) /bin/cat {self.folder}/answer; exit {code};;
*) /bin/cat {self.folder}/page;;
esac"""
        program(self.bin, "podman", body)

    def ask(self, *, gpus: tuple[str, ...] = ("0",), env: Any = None, page: bool = True, **more: Any) -> dict[str, Any]:
        """One call of the module."""
        return run_module(
            self.module,
            self.capsys,
            state_dir=str(self.state),
            images=[{"reference": REFERENCE, "page": page}],
            instances=[{"name": "chat", "reference": REFERENCE, "gpus": list(gpus), "env": env or {}}],
            **{"driver": "570.86.15", **more},
        )

    @property
    def runs(self) -> list[list[str]]:
        """Containers that were run."""
        return [call for call in calls(self.bin, "podman") if call[1] == "run"]


@pytest.fixture
def node(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Node:
    return Node(tmp_path, capsys, monkeypatch)


def test_flags_and_cuda_are_asked_once(node: Node) -> None:
    first = node.ask()
    assert first["changed"]
    assert first["answers"] == {"chat": GOOD}
    assert first["pages"] == {REFERENCE: PAGE.read_text()}
    assert first["asked"] == ["instance chat", "flags of " + REFERENCE]
    asked = len(node.runs)
    second = node.ask()
    assert not second["changed"]
    assert (second["answers"], second["pages"], second["asked"]) == (first["answers"], first["pages"], [])
    assert len(node.runs) == asked == 2


def test_a_container_can_do_nothing_but_answer(node: Node) -> None:
    node.ask(gpus=("0", "MIG-1"), env={"LD_LIBRARY_PATH": "/usr/local/nvidia/lib64"})
    for call in node.runs:
        for word in ("--rm", "--pull=never", "--network=none", "--read-only", "--cap-drop=all", "--http-proxy=false"):
            assert word in call
        assert any(word.startswith("--timeout=") for word in call)
        devices = [call[at + 1] for at, word in enumerate(call) if word == "--device"]
        assert devices == ["nvidia.com/gpu=0", "nvidia.com/gpu=MIG-1"]
    assert "LD_LIBRARY_PATH=/usr/local/nvidia/lib64" in node.runs[0]
    assert node.runs[1][-1] == "--help=all"


def test_another_driver_other_gpus_and_other_variables_are_asked_about_anew(node: Node) -> None:
    node.ask()
    before = len(node.runs)
    for changes in ({"driver": "580.1"}, {"gpus": ("1",)}, {"env": {"LD_LIBRARY_PATH": "/x"}}):
        assert node.ask(**changes)["asked"] == ["instance chat"]
    assert len(node.runs) == before + 3
    # And what was known is still known.
    assert node.ask()["asked"] == []


def test_a_page_that_the_control_host_has_is_not_read(node: Node) -> None:
    answer = node.ask(page=False)
    assert answer["asked"] == ["instance chat"]
    assert answer["pages"] == {}


def test_a_bad_answer_is_told_and_not_kept(node: Node) -> None:
    node.says(json.dumps({**GOOD, "cuinit": 803}))
    first = node.ask()
    assert first["answers"]["chat"]["cuinit"] == 803
    assert not first["changed"]
    assert not (node.state / "probe").exists()
    node.says()
    assert node.ask()["answers"] == {"chat": GOOD}


def test_without_python_the_image_says_so(node: Node) -> None:
    node.says("", code=127)
    assert node.ask()["answers"]["chat"]["python"] is None


def test_a_container_that_fails_for_another_reason_is_no_image_without_python(node: Node) -> None:
    node.says("Error: unresolvable CDI devices nvidia.com/gpu=0", code=126)
    answer = node.ask()["answers"]["chat"]
    assert "python" not in answer
    assert "unresolvable CDI devices" in answer["error"]


def test_instances_without_gpus_ask_for_python_only(node: Node) -> None:
    node.says(json.dumps({"python": "3.12.3", "vllm": "0.32.0"}))
    assert node.ask(gpus=())["changed"]
    assert not any(word == "--device" for call in node.runs for word in call)
    assert "cuda" not in node.runs[0]
    assert not calls(node.bin, "systemctl")


def test_the_gpus_are_described_before_they_are_asked_for(node: Node) -> None:
    node.ask()
    assert ["systemctl", "start", "gpu-cdi-ready.service"] in calls(node.bin, "systemctl")


def test_gpus_that_cannot_be_described_are_the_answer(node: Node) -> None:
    program(node.bin, "systemctl", 'case "$*" in show*) echo LoadState=loaded;; start*) exit 1;; esac')
    program(node.bin, "journalctl", "echo 'gpu-cdi-ready: fabric state: In Progress'")
    answer = node.ask()
    assert "fabric state: In Progress" in answer["answers"]["chat"]["error"]
    assert node.runs == []


def test_a_page_without_flags_is_an_error_and_not_kept(node: Node) -> None:
    node.says(page="Serves models.\n")
    answer = node.ask()
    assert answer["pages"] == {}
    assert "--help=all gives no list of flags" in answer["errors"][REFERENCE]
    assert [call[-1] for call in node.runs[1:]] == ["--help=all", "--help"]
    node.says()
    assert node.ask()["asked"] == ["flags of " + REFERENCE]


def test_a_damaged_record_counts_as_none(node: Node) -> None:
    node.ask()
    (record,) = (node.state / "probe").iterdir()
    record.write_text("{")
    assert node.ask()["asked"] == ["instance chat", "flags of " + REFERENCE]
    assert node.ask()["asked"] == []


def test_check_mode_runs_nothing_and_tells_what_is_kept(node: Node) -> None:
    bare = node.ask(_ansible_check_mode=True)
    assert bare["changed"]
    assert bare["asked"]
    assert node.runs == []
    assert not node.state.exists()
    node.ask()
    kept = node.ask(_ansible_check_mode=True)
    assert not kept["changed"]
    assert kept["answers"] == {"chat": GOOD}


def test_an_image_that_is_not_there_is_not_asked(node: Node) -> None:
    node.says(there=False)
    answer = node.ask()
    assert answer["absent"] == [REFERENCE]
    assert not answer["changed"]
    assert node.runs == []


def test_a_teardown_finds_the_records(node: Node) -> None:
    node.ask()
    manifest = manifest_code().Manifest.load(str(node.state))
    (path,) = manifest.data["files"]
    assert Path(path).parent == node.state / "probe"
    manifest.remove(path)
    manifest.remove_empty_directories()
    assert not (node.state / "probe").exists()


def test_a_question_without_an_end_is_ended(node: Node) -> None:
    program(node.bin, "podman", 'case "$1" in run) exec /bin/sleep 30;; esac')
    node.module.run = lambda *argv, limit_s=60, real=node.module.run: real(*argv, limit_s=min(limit_s, 0.3))
    answer = node.ask()
    assert "did not end within" in answer["answers"]["chat"]["error"]
    assert ["podman", "rm", "--force", "--ignore", "--time=0", "vllm-node-probe-chat"] in calls(node.bin, "podman")[2:]


def test_the_program_that_asks_runs_where_there_is_no_libcuda() -> None:
    script = load("roles/image_probe/library/image_probe.py").SCRIPT
    environment = {**os.environ, "LD_LIBRARY_PATH": ""}
    done = subprocess.run(
        [sys.executable, "-c", script, "cuda"], capture_output=True, text=True, check=True, timeout=30, env=environment
    )
    told = json.loads(done.stdout)
    assert told["python"] == sys.version.split()[0]
    assert "error" in told or "cuinit" in told


def findings(answer: dict[str, Any], **changes: Any) -> list[Finding]:
    site = variables()
    site["vllm_instances"][0].update(changes)
    return list(probe.findings(wanted_from("gpu1", site), {"llama": answer}))


def test_a_good_answer_and_none_at_all_are_no_findings() -> None:
    assert findings(GOOD) == []
    assert findings({"python": "3.12", "vllm": None}, gpus=[]) == []
    assert list(probe.findings(wanted_from("gpu1", variables()), {})) == []


@pytest.mark.parametrize(
    ("code", "name", "advice"),
    [
        (802, "CUDA_ERROR_SYSTEM_NOT_READY", "nvidia-fabricmanager"),
        (803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", "LD_LIBRARY_PATH: /usr/local/nvidia/lib64"),
        (804, "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE", "Update the driver"),
        (100, "CUDA_ERROR_NO_DEVICE", "gpu-cdi-ready.service"),
        (999, "CUDA_ERROR_UNKNOWN", "nvidia-uvm"),
        (17, "CUresult 17", "NVIDIA's list"),
    ],
)
def test_what_cuinit_answers_is_told_by_name_with_its_cure(code: int, name: str, advice: str) -> None:
    (found,) = findings({**GOOD, "cuinit": code})
    assert (found.id, found.level) == ("image.cuda", "fail")
    assert f"cuInit gives {code} ({name}) with GPU 0, 1" in found.seen
    assert "/usr/lib64/libcuda.so.1" in found.seen
    assert "instance llama" in found.seen
    assert advice in found.mend


@pytest.mark.parametrize(
    ("answer", "check"),
    [
        ({"python": None, "error": "python3: not found"}, "image.python"),
        ({"python": "3.12", "vllm": "0.32.0", "error": "libcuda.so.1: cannot open shared object file"}, "image.libcuda"),
        ({"error": "exit code 126: unresolvable CDI devices"}, "image.probe"),
    ],
)
def test_an_image_that_cannot_answer_is_a_failure(answer: dict[str, Any], check: str) -> None:
    (found,) = findings(answer)
    assert (found.id, found.level) == (check, "fail")
    assert answer["error"] in found.seen


def test_variables_that_choose_libcuda_belong_to_the_question() -> None:
    site = variables()
    site["vllm_instances"][0]["env"] = {"LD_LIBRARY_PATH": "/x", "VLLM_LOGGING_LEVEL": "DEBUG"}
    (instance,) = wanted_from("gpu1", site).instances
    assert probe.cuda_variables(instance) == {"LD_LIBRARY_PATH": "/x"}


def test_an_image_without_a_list_of_flags_is_pointed_out() -> None:
    wanted = wanted_from("gpu1", variables())
    (image,) = (image for image in wanted.images if image.name == "vllm")
    (found,) = probe.unread(wanted, {image.reference: "no output"})
    assert (found.id, found.level) == ("image.flags", "warn")


def test_every_answer_of_cuda_has_a_cure() -> None:
    assert all(answer.mend and answer.means and answer.name.isupper() for answer in cuda.ANSWERS.values())


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def site(**changes: Any) -> Any:
    wanted = variables()
    wanted["vllm_instances"][0]["args"].update(changes)
    # Neither the tag nor anything but the page tells the version.
    wanted["images_lock"]["vllm"]["tag"] = "nightly"
    return wanted_from("gpu1", wanted)


def answered(wanted: Any) -> dict[str, Any]:
    (image,) = probe.questions({}, wanted)["images"]
    return {"pages": {image["reference"]: PAGE.read_text()} if image["page"] else {}, "answers": {"llama": GOOD}}


def test_a_flag_that_the_page_does_not_know_fails_once_the_page_is_there(own_cache: Path) -> None:
    wanted = site(**{"max-num-seqss": 8})
    (before,) = judge({}, wanted)
    assert (before.id, before.level) == ("instance.flags", "warn")
    assert "the version is not known, the tag 'nightly' does not tell it" in before.seen
    (found,) = probe.judged({}, wanted, answered(wanted))
    assert (found.id, found.level, found.host) == ("instance.flags", "fail", "gpu1")
    for word in ("instance llama", "max-num-seqss", "vLLM 0.32.0 of this image", "the flags that image vllm gave"):
        assert word in found.seen
    assert "Write max-num-seqs." in found.mend
    # From now on preflight knows it, and the page is not asked for again.
    assert judge({}, wanted) == [found]
    assert probe.questions({}, wanted)["images"][0]["page"] is False


def test_a_cache_that_cannot_be_written_does_not_stop_a_bring_up(own_cache: Path) -> None:
    own_cache.write_text("no folder")
    wanted = site(**{"max-num-seqss": 8})
    (found,) = probe.judged({}, wanted, answered(wanted))
    assert found.level == "fail"


def test_a_check_that_the_site_ignores_warns(own_cache: Path) -> None:
    wanted = site(**{"max-num-seqss": 8})
    wanted = replace(wanted, limits=replace(wanted.limits, ignore=("instance.flags",)))
    (found,) = probe.judged({}, wanted, answered(wanted))
    assert found.level == "warn"


def test_the_text_says_how_far_the_bring_up_has_come(own_cache: Path) -> None:
    wanted = site(**{"max-num-seqss": 8})
    text = probe.told("gpu1", probe.judged({}, wanted, answered(wanted)))
    assert text.splitlines()[0] == "gpu1: 1 failure, no warnings; no unit of an instance has been installed."
    assert probe.told("gpu1", []) == "gpu1: images can do what their instances ask for"


def test_only_pinned_images_of_instances_are_asked(own_cache: Path) -> None:
    wanted = variables()
    wanted["images_lock"]["vllm"]["digest"] = "sha256:" + "0" * 64
    assert probe.questions({}, wanted_from("gpu1", wanted)) == {"driver": "", "images": [], "instances": []}
    (instance,) = probe.questions(snapshot(), site())["instances"]
    assert instance == {
        "name": "llama",
        "reference": f"registry.site.example:5000/site/vllm@{digest('vllm')}",
        "gpus": ["0", "1"],
        "env": {},
    }


def test_a_flag_that_vllm_node_itself_sets_is_judged_too_and_says_whose_it_is(own_cache: Path) -> None:
    wanted = site()
    short = PAGE.read_text().replace("--shutdown-timeout SHUTDOWN_TIMEOUT", "--other-timeout OTHER_TIMEOUT")
    answer = answered(wanted)
    (reference,) = answer["pages"]
    (found,) = probe.judged({}, wanted, {**answer, "pages": {reference: short}})
    assert "args shutdown-timeout (of vllm-node)" in found.seen
    assert "`shutdown-timeout: null`" in found.mend
