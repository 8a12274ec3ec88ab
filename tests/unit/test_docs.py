"""The documentation against the code: generated parts, commands and flags, links, names."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest
import yaml

from tests.unit.node_code import ROOT
from vllm_node import demo
from vllm_node.cli import cli
from vllm_node.docs import BEGIN, checks, documents
from vllm_node.lab import gpu, roots

PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def commands(text: str) -> list[str]:
    """Command lines in a page: lines of its shell blocks, and what stands in backquotes."""
    blocks = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    inline = re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    # A command may go on in the next line.
    joined = [re.sub(r"\\\n\s*", " ", block) for block in blocks]
    lines = [line.partition("#")[0].strip() for block in joined for line in block.splitlines()]
    return [line for line in [*lines, *inline] if line]


def complaint(line: str) -> str | None:
    """What is wrong with a command line; None for one that exists, or that is none of ours."""
    words = shlex.split(line)
    if words[0] == "make" and len(words) > 1:
        return None if words[1] in TARGETS else f"the Makefile has no {words[1]}"
    books = [word for word in words if re.fullmatch(r"playbooks/.*\.yml", word)]
    if books:
        return next((f"there is no {book}" for book in books if not (ROOT / book).is_file()), None)
    if words[0] != "vllm-node" or len(words) == 1:
        return None
    command: click.Command = cli
    context = click.Context(cli)
    rest = words[1:]
    while rest and isinstance(command, click.Group) and not rest[0].startswith("-"):
        found = command.get_command(context, rest[0])
        if found is None:
            return f"{line}: there is no command {rest[0]}"
        command, rest = found, rest[1:]
    known = {name for option in command.params for name in (*option.opts, *option.secondary_opts)} | {"--help"}
    if command is cli:
        known.add("--version")
    unknown = [word for word in rest if word.startswith("-") and word.partition("=")[0] not in known]
    return f"{line}: no option {unknown[0]}" if unknown else None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_and_flags_exist(page: Path) -> None:
    assert [found for line in commands(page.read_text()) if (found := complaint(line))] == []


@pytest.mark.parametrize(
    "line",
    ["vllm-node upp", "vllm-node up --inventori x", "vllm-node lab boot", "make coffee", "ansible-playbook playbooks/no.yml"],
)
def test_a_command_that_does_not_exist_would_be_found(line: str) -> None:
    assert complaint(line) is not None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text())
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_generated_parts_are_what_the_code_says() -> None:
    stale = [path.name for path, text in documents(ROOT).items() if path.read_text() != text]
    assert stale == [], "run python -m vllm_node.docs"


def test_a_new_variable_and_a_new_check_make_the_pages_stale(tmp_path: Path) -> None:
    spec = tmp_path / "roles/new/meta/argument_specs.yml"
    spec.parent.mkdir(parents=True)
    option = {"new_port": {"type": "int", "default": 1, "description": "C(port)"}}
    spec.write_text(yaml.safe_dump({"argument_specs": {"main": {"short_description": "New", "options": option}}}))
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/preflight.md").write_text(f"{BEGIN}\n<!-- end -->\n")
    (tmp_path / "vllm_node").symlink_to(ROOT / "vllm_node")
    written = documents(tmp_path)
    assert "| `new_port` | int | `1` | `port` |" in written[tmp_path / "docs/variables.md"]
    assert "| `swap.on` | warn | " in written[tmp_path / "docs/preflight.md"]


def test_each_check_has_a_reason() -> None:
    rows = [line.split("|")[1:-1] for line in checks(ROOT / "vllm_node").splitlines()[2:]]
    assert len(rows) > 60
    assert [row[0] for row in rows if not re.search(r"[a-z]{3}", row[2])] == []


def test_the_readme_has_two_commands_to_set_up() -> None:
    section = (ROOT / "README.md").read_text().partition("## Set up")[2].partition("\n## ")[0]
    (block,) = re.findall(r"```sh\n(.*?)```", section, re.DOTALL)
    assert [line.partition("#")[0].split() for line in block.splitlines()] == [["make", "demo"], ["make", "test"]]


def test_the_lab_page_names_every_choice() -> None:
    page = (ROOT / "docs/lab.md").read_text()
    assert [name for name in [*gpu.PROFILES, *roots.RELEASES] if f"`{name}`" not in page] == []


def test_the_demo_knows_the_ports_of_the_lab() -> None:
    values = yaml.safe_load((ROOT / "inventories/lab/group_vars/all/main.yml").read_text())
    for role in ("prometheus", "grafana", "dcgm_exporter"):
        values = {**yaml.safe_load((ROOT / f"roles/{role}/defaults/main.yml").read_text()), **values}
    ports = [one["port"] for one in values["vllm_instances"]]
    ports += [values[f"{role}_port"] for role in ("prometheus", "grafana", "dcgm_exporter")]
    assert list(demo.PORTS.values()) == ports
