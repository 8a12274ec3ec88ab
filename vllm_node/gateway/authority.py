"""Where the authority of a node's gateway lies on the control host, for handing it to clients."""

from __future__ import annotations

from pathlib import Path

from vllm_node.paths import state_dir


def path(host: str) -> Path:
    """File with the PEM of the authority that signed the certificate of this node's gateway."""
    return state_dir() / "gateway" / f"{host}-ca.crt"


def keep(host: str, pem: str) -> Path:
    """Write it down, in one step; an unchanged one is left as it is."""
    target = path(host)
    if not target.exists() or target.read_text() != pem:
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.with_name(f".{target.name}")
        partial.write_text(pem)
        partial.rename(target)
    return target
