"""The last words of units that died, and what they usually mean."""

from __future__ import annotations

import re

_WORDS: tuple[tuple[str, str], ...] = (
    (
        r"unresolvable CDI devices (\S+)",
        "podman finds no such GPU in the CDI specifications: compare `nvidia-ctk cdi list` with the instance's gpus",
    ),
    (
        r"system not yet initialized|\b[Ee]rror:? 802\b",
        "CUDA error 802: the NVSwitch fabric is not up. nvidia-fabricmanager must run, in the driver's version",
    ),
    (
        r"system has unsupported display driver|\b[Ee]rror:? 803\b",
        "CUDA error 803: libcuda of the image and the node's driver do not fit; use an image for this driver",
    ),
    (
        r"forward compatibility was attempted|\b[Ee]rror:? 804\b",
        "CUDA error 804: the image's CUDA is newer than this driver can serve on this GPU; update the driver",
    ),
    (
        r"Driver/library version mismatch",
        "the driver was updated while the old one is loaded: reboot the node",
    ),
    (
        r"Failed to initialize NVML: Unknown Error",
        "the container has lost its GPUs, as a reload of systemd can do to it: systemctl restart the unit; "
        "with runc, use crun",
    ),
    (
        r"CUDA out of memory|Free memory on device .* is less than desired",
        "not enough free GPU memory: another process holds it, or gpu-memory-utilization asks for too much",
    ),
    (
        r"No available memory for the cache blocks|larger than the (?:maximum number of tokens|available KV cache)",
        "the KV cache does not fit: lower max-model-len, or give the instance more GPUs",
    ),
    (
        r"Error while creating shared memory segment|No space left on device.*shm|Bus error",
        "shared memory is too small: raise shm_size",
    ),
    (
        r"pthread_create failed|can't start new thread",
        "the limit of processes was reached: look at TasksMax of the unit and pids.max of its cgroup",
    ),
    (r"[Aa]ddress already in use", "the port is taken by somebody else: `ss -lntp` names the process"),
    (
        # vLLM prints `trust_remote_code=False` among its settings at each start: the bare word says nothing.
        r"contains custom code which must be executed|(?:setting|argument) .?trust_remote_code=True",
        "the model brings code of its own; allow it with trust-remote-code: true",
    ),
    (
        r"Can't load tokenizer|Couldn't instantiate the backend tokenizer|tokenizer\S* (?:was )?not found",
        "tokenizer files are missing from the model's folder",
    ),
    (
        r"unrecognized arguments: (.*)",
        "this version of vLLM does not know that flag; `vllm serve --help=all` of the image lists them",
    ),
    (
        r"lookup init binary|catatonit\S* executable file not found",
        "podman's init program is missing on the node: install the package catatonit",
    ),
    (r"image not known|no such image", "the image is not on the node: run the playbook again, it pulls it"),
    (
        r"[Pp]ermission denied|Insufficient Permissions",
        "a file or folder cannot be read or written; with SELinux, `ausearch -m avc -ts recent`",
    ),
)


def likely_cause(log: str) -> str | None:
    """What the end of a unit's log usually means; None when it says nothing that is known."""
    for pattern, meaning in _WORDS:
        match = re.search(pattern, log)
        if match:
            detail = f" ({match[1].strip()})" if match.lastindex else ""
            return meaning + detail
    return None
