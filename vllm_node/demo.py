"""`make demo`: a lab node from nothing to an answer and its speed, or what can be shown where no lab can boot."""

from __future__ import annotations

import shlex
import subprocess
import sys

import click

from vllm_node.exit_codes import ExitCode
from vllm_node.gateway import authority
from vllm_node.lab import host
from vllm_node.lab.errors import LabError
from vllm_node.lab.lab import Lab, default_name

NODE = "node1"
# As inventories/lab has it.
_KEY = "lab-only-key-of-the-one-client-of-the-lab"
# What listens on the node's loopback, by the ports that the lab's inventory and the roles' defaults give.
PORTS = {"vLLM's API": 8000, "Prometheus": 9091, "Grafana (stand-in)": 3000, "DCGM exporter (stand-in)": 9400}


def main() -> int:
    """Run the demo; return its exit code."""
    if can_boot():
        return _in_the_lab()
    return _without_a_lab()


def can_boot() -> bool:
    """Whether a lab can boot here, after installing what can be installed; says what is missing."""
    return _vllm_node("lab", "check", "--install") == 0


def _in_the_lab() -> int:
    code = _vllm_node("lab", "up") or _vllm_node("up", "-i", "inventories/lab")
    # Slower than the lab's inventory promises is up all the same.
    if code not in (ExitCode.OK, ExitCode.SLO_FAILED):
        click.echo("\nThe demo stopped here. What is up stays for a look: `vllm-node lab list`.", err=True)
        return code
    click.echo("\n".join(ways_in()))
    return 0


def ways_in() -> list[str]:
    """How to look at what runs, line by line."""
    lab = Lab.find(default_name())
    if lab is None:
        raise LabError("the lab that was just brought up is gone; `vllm-node lab list`")
    *ssh, address = lab.ssh(NODE)
    forwards = [word for port in PORTS.values() for word in ("-L", f"{port}:127.0.0.1:{port}")]
    width = max(map(len, PORTS))
    return [
        "",
        f"A real model server is up on lab node {NODE}. Clients reach it through the gateway:",
        f"  curl --cacert {authority.path(NODE)} -H 'Authorization: Bearer {_KEY}' https://{address.partition('@')[2]}:8443/v1/models",
        "",
        "All else listens on the node's own loopback:",
        *(f"  {name.ljust(width)}  http://127.0.0.1:{port}" for name, port in PORTS.items()),
        "",
        "To reach these from here, leave this running in another terminal:",
        f"  {shlex.join([*ssh, '-N', *forwards, address])}",
        "then open Prometheus in a browser, or ask without the gateway:",
        "  curl http://127.0.0.1:8000/v1/models",
        "",
        "vllm-node is .venv/bin/vllm-node:",
        f"  vllm-node lab ssh {NODE}                  enter the node",
        "  vllm-node status -i inventories/lab     look at it from outside",
        "  vllm-node down -i inventories/lab       hand the node back as it was found, with a certificate",
        "  vllm-node lab down                      end the lab",
    ]


def _without_a_lab() -> int:
    click.echo("\nNo lab can boot here (see above), so no node is brought up and no model answers.")
    click.echo("What can be done here: the example inventory's units and configurations.\n")
    code = _vllm_node("render", "-i", "inventories/example", "--output", "rendered")
    if code == 0:
        click.echo("\nDone: rendered and validated as told above, below rendered/.")
        click.echo("Not done: booting a node, pulling images, starting units, asking a model:")
        for thing in host.missing():
            click.echo(f"  {thing.what} - {thing.cure}")
    return code


def _vllm_node(*words: str) -> int:
    return subprocess.run([sys.executable, "-m", "vllm_node", *words], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
