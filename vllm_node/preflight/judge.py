"""All checks, run over one snapshot."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from vllm_node.preflight import (
    checks_cdi,
    checks_firewall,
    checks_fit,
    checks_flags,
    checks_gpu,
    checks_images,
    checks_instances,
    checks_mirrors,
    checks_models,
    checks_network,
    checks_os,
    checks_packages,
    checks_podman,
    checks_resources,
    checks_trust,
)
from vllm_node.preflight.checks_packages import left_to_packages
from vllm_node.preflight.deliveries import as_delivered
from vllm_node.preflight.findings import Finding, ordered, softened
from vllm_node.preflight.reading import Snapshot
from vllm_node.preflight.wanted import Wanted

Check = Callable[[Snapshot, Wanted], Iterator[Finding]]

# In the order in which a person would mend things.
CHECKS: tuple[Check, ...] = (
    *checks_os.CHECKS,
    *checks_packages.CHECKS,
    *checks_podman.CHECKS,
    *checks_gpu.CHECKS,
    *checks_cdi.CHECKS,
    *checks_instances.CHECKS,
    *checks_flags.CHECKS,
    *checks_resources.CHECKS,
    *checks_network.CHECKS,
    *checks_firewall.CHECKS,
    *checks_mirrors.CHECKS,
    *checks_trust.CHECKS,
    *checks_images.CHECKS,
    *checks_models.CHECKS,
    *checks_fit.CHECKS,
)


def judge(snapshot: Snapshot, wanted: Wanted) -> list[Finding]:
    """All findings on one node, what stops first. What was not seen raises nothing and gives no finding."""
    seen = as_delivered(snapshot, wanted)
    found = [replace(each, host=wanted.host) for check in CHECKS for each in check(seen, wanted)]
    return ordered(softened(left_to_packages(found, wanted.packages), wanted.limits.ignore))
