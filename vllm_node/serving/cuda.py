"""What cuInit answers, by name, and what to do about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Answer:
    """A CUresult: NVIDIA's name of it, what it means here, and the next step."""

    name: str
    means: str
    mend: str


_REBOOT = "Look at `dmesg | grep -i -e nvrm -e xid` on the node; load nvidia-uvm, and reboot if it stays."

ANSWERS: Mapping[int, Answer] = {
    3: Answer("CUDA_ERROR_NOT_INITIALIZED", "the driver does not answer", _REBOOT),
    34: Answer(
        "CUDA_ERROR_STUB_LIBRARY",
        "libcuda is an empty one that programs are built with",
        "Take the folder of stubs out of LD_LIBRARY_PATH of the instance or of the image.",
    ),
    100: Answer(
        "CUDA_ERROR_NO_DEVICE",
        "the container has no GPU that CUDA can use",
        "Look at gpus of the instance, take CUDA_VISIBLE_DEVICES out of its env, and write the CDI specification again "
        "(systemctl restart gpu-cdi-ready.service).",
    ),
    101: Answer(
        "CUDA_ERROR_INVALID_DEVICE",
        "CUDA_VISIBLE_DEVICES names a GPU that the container does not have",
        "Take CUDA_VISIBLE_DEVICES out of env: gpus of the instance says which GPUs it gets.",
    ),
    802: Answer(
        "CUDA_ERROR_SYSTEM_NOT_READY",
        "the NVSwitch fabric is not up",
        "nvidia-fabricmanager must run in exactly the driver's version; wait until `nvidia-smi -q` shows fabric state "
        "Completed. It also comes where a GPU is used that the fabric manager does not know: reboot the node.",
    ),
    803: Answer(
        "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
        "libcuda and the kernel module of the driver are of different versions",
        "Mostly the image brings a libcuda of its own (cuda-compat) that comes before the node's: set "
        "LD_LIBRARY_PATH: /usr/local/nvidia/lib64 in env of the instance and leave VLLM_ENABLE_CUDA_COMPATIBILITY out, "
        "or lock a newer image, in which it is only used when asked for. If the driver was updated, reboot the node.",
    ),
    804: Answer(
        "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE",
        "the CUDA of the image is newer than the driver, and this GPU takes no compatibility libraries",
        "Update the driver, lock an image that was built for the driver's CUDA, and leave "
        "VLLM_ENABLE_CUDA_COMPATIBILITY out: it is for data-centre GPUs only.",
    ),
    999: Answer("CUDA_ERROR_UNKNOWN", "the driver failed without saying why", _REBOOT),
}


def told(code: int) -> Answer:
    """The answer of that number; one that is not known has no name but its number."""
    return ANSWERS.get(code) or Answer(
        f"CUresult {code}", "the driver refuses", "Look the number up in NVIDIA's list of CUresult. " + _REBOOT
    )
