"""Units and configurations against golden files. `GOLDEN_WRITE=1` writes them anew: read the difference then."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.unit.golden import GOLDEN, as_golden, rendered, tree
from tests.unit.test_units import expanded, raw_words, split_like_systemd
from vllm_node.paths import cache_dir

GENERATORS = ("/usr/libexec/podman/quadlet", "/usr/lib/systemd/system-generators/podman-system-generator")
CHAT = "node-a/etc/containers/systemd/vllm-chat.container"


def written() -> dict[str, str]:
    return {path: text for path, text in tree(GOLDEN).items() if path != "inventory.yml"}


def differences(golden: dict[str, str], actual: dict[str, str]) -> list[str]:
    """Paths that are not the same, are missing, or are there without being wanted."""
    return sorted(path for path in {*golden, *actual} if golden.get(path) != actual.get(path))


def test_rendered_files_are_the_golden_ones() -> None:
    actual = as_golden(rendered())
    if os.environ.get("GOLDEN_WRITE"):
        for folder in GOLDEN.glob("node-*"):
            shutil.rmtree(folder)
        for path, text in actual.items():
            (GOLDEN / path).parent.mkdir(parents=True, exist_ok=True)
            (GOLDEN / path).write_text(text)
    assert differences(written(), actual) == [], "GOLDEN_WRITE=1 writes them anew"


def test_a_changed_a_missing_and_a_stray_file_are_noticed() -> None:
    golden = written()
    changed = {**golden, CHAT: golden[CHAT].replace("Pull=never", "Pull=always"), "node-a/stray": ""}
    del changed["node-b/etc/vllm-node/prometheus/prometheus.yml"]
    assert differences(golden, changed) == [CHAT, "node-a/stray", "node-b/etc/vllm-node/prometheus/prometheus.yml"]


def test_components_that_are_switched_off_are_not_rendered() -> None:
    golden = as_golden(rendered())
    assert {path.removeprefix("node-b/etc/") for path in golden if path.startswith("node-b/")} == {
        "containers/certs.d/registry.site.example:5000/ca.crt",
        "containers/systemd/prometheus.container",
        "vllm-node/prometheus/prometheus.yml",
    }
    copies = [line.split()[0] for line in golden["copies.txt"].splitlines() if line.startswith("node-b/")]
    assert copies == [
        "node-b/etc/systemd/system/vllm-node.target",
        "node-b/etc/vllm-node/prometheus/rules/recording.yml",
    ]
    rules = {path for path in rendered() if path.startswith("node-b/") and "/rules/alerts-" in path}
    assert {Path(path).stem for path in rules} == {"alerts-exporters", "alerts-prometheus"}
    assert "job_name: dcgm" not in written()["node-b/etc/vllm-node/prometheus/prometheus.yml"]


def test_no_secret_of_the_inventory_is_rendered() -> None:
    assert not [path for path, text in rendered().items() if "from-a-vault" in text]


def words_of(unit: str, start: str) -> list[str]:
    """Words of the only line that begins with `start` and goes on after its first `=`."""
    (found,) = [line for line in written()[unit].splitlines() if line.startswith(start)]
    return split_like_systemd(found.partition("=")[2])


def test_the_command_line_arrives_as_the_inventory_has_it() -> None:
    words = words_of(CHAT, "Exec=")
    assert words[0] == "/models/chat"
    assert "--no-enable-prefix-caching" in words
    assert "--enforce-eager" in words
    assert "--uvicorn-log-level" not in words  # a null takes a default away
    after = {flag: words[words.index(flag) + 1] for flag in words if flag.startswith("--") and flag != words[-1]}
    assert after["--hf-overrides"] == ('{"rope_scaling":{"type":"yarn","factor":2.0},"note":"it\'s \\"100%\\" $HOME"}')
    assert after["--chat-template"] == "/srv/templates/chat.jinja"
    assert words[words.index("--lora-modules") + 1 :] == [
        "first=/srv/lora/first",
        '{"name":"second","path":"/srv/lora/second"}',
    ]


def test_the_environment_arrives_as_the_inventory_has_it() -> None:
    assert words_of(CHAT, 'Environment="QUOTED=') == ['QUOTED=say "hi" to 100% of $USERS']
    assert words_of(CHAT, 'Environment="BACKSLASH=') == ["BACKSLASH=C:\\temp"]
    assert words_of(CHAT, "Environment=OMP_NUM_THREADS=") == ["OMP_NUM_THREADS=8"]


def test_profiling_that_is_off_takes_its_capability_and_its_counters_along() -> None:
    unit = written()["node-a/etc/containers/systemd/dcgm-exporter.container"]
    counters = written()["node-a/etc/vllm-node/dcgm-exporter/counters.csv"]
    assert "AddCapability" not in unit
    assert "DCGM_FI_PROF" not in counters
    assert "DCGM_FI_DEV_GPU_UTIL" in counters


def generators() -> list[str]:
    """Quadlet generators of this machine, and of the roots that labs were made of (5.4 and 5.8)."""
    roots = [*cache_dir().glob("node-trixie-*/root"), *cache_dir().glob("node-sid-*/root")]
    places = [*GENERATORS, *(f"{root}/usr/libexec/podman/quadlet" for root in roots)]
    return [path for path in places if os.access(path, os.X_OK)]


def dry_run(generator: str, folder: Path, units: dict[str, str]) -> subprocess.CompletedProcess[str]:
    for name, text in units.items():
        (folder / name).write_text(text)
    env = {"QUADLET_UNIT_DIRS": str(folder)}
    return subprocess.run([generator, "-dryrun"], env=env, capture_output=True, text=True, check=False, timeout=60)


def test_quadlet_takes_every_unit_and_hands_on_every_word(tmp_path: Path) -> None:
    found = generators()
    if not found:
        pytest.skip("no Quadlet generator is on this machine; the node tests run it on a lab node")
    units = {
        Path(path).name: text
        for path, text in rendered().items()
        if path.startswith("node-a") and path.endswith(".container")
    }
    for generator in found:
        done = dry_run(generator, tmp_path, units)
        assert done.returncode == 0, done.stderr
        services = {part.partition("---\n")[0]: part for part in done.stdout.split("\n---") if ".service---" in part}
        assert len(services) == len(units), (generator, done.stdout)
        (start,) = [line for line in services["vllm-chat.service"].splitlines() if line.startswith("ExecStart=")]
        words = raw_words(start.removeprefix("ExecStart="))
        wanted = words_of(CHAT, "Exec=")
        assert [expanded(word) for word in words[-len(wanted) :]] == wanted
        environment = [expanded(words[at + 1]) for at, word in enumerate(words) if word == "--env"]
        assert 'QUOTED=say "hi" to 100% of $USERS' in environment
        assert "BACKSLASH=C:\\temp" in environment


def test_quadlet_would_drop_a_unit_with_an_unknown_key(tmp_path: Path) -> None:
    found = generators()
    if not found:
        pytest.skip("no Quadlet generator is on this machine; the node tests run it on a lab node")
    done = dry_run(found[0], tmp_path, {"x.container": "[Container]\nImage=x\nBogus=1\n"})
    assert "---x.service---" not in done.stdout
