"""The images of the lab, made from Debian packages and PyPI wheels, and pushed into its registry's storage.

Upstream registries are out of reach of a lab, so each image is made here to the interface of the upstream one:
same entry point, same user, same paths. Only DCGM's exporter and Grafana are stand-ins, and are named so.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from vllm_node.lab import registry, roots, vllm_cpu
from vllm_node.lab.cache import lock, recipe_hash
from vllm_node.lab.command import run
from vllm_node.paths import cache_dir

# Raised when `_make` itself changes.
_FORMAT = 3
_STANDINS = Path(__file__).with_name("standins")


@dataclass(frozen=True)
class Recipe:
    """How one image is made.

    `packages` are Debian packages of its root, `files` are copied into it (source → path, executable),
    `fill` may add more to the mounted root, `revision` is raised when the same recipe should give a new image.
    """

    name: str
    repository: str
    tag: str
    suite: str
    packages: Sequence[str]
    entrypoint: Sequence[str]
    command: Sequence[str] = ()
    user: str = ""
    env: Sequence[str] = ()
    files: Sequence[tuple[Path, str]] = ()
    directories: Sequence[tuple[str, int]] = ()
    inputs: Sequence[Path] = ()
    fill: Callable[[Path], None] | None = field(default=None, compare=False)
    revision: int = 1

    @property
    def key(self) -> str:
        """Hash over everything that this image is made from."""
        return recipe_hash(
            *(self.name, self.repository, self.tag, self.suite, list(self.packages), list(self.entrypoint)),
            *(list(self.command), self.user, list(self.env), [list(d) for d in self.directories]),
            *(self.revision, _FORMAT),
            *(path for path, _ in self.files),
            *(target for _, target in self.files),
            *self.inputs,
        )


_PROMETHEUS = Recipe(
    name="prometheus",
    repository="prom/prometheus",
    tag="v2.53.3",
    suite="trixie",
    packages=("prometheus", "ca-certificates"),
    entrypoint=("/bin/prometheus",),
    command=("--config.file=/etc/prometheus/prometheus.yml", "--storage.tsdb.path=/prometheus"),
    user="65534:65534",
    directories=(("/prometheus", 65534),),
)
RECIPES = (
    Recipe(
        name="vllm",
        repository="vllm/vllm-openai",
        tag=f"v{vllm_cpu.VERSION}-cpu",
        suite=vllm_cpu.IMAGE_SUITE,
        packages=vllm_cpu.IMAGE_PACKAGES,
        entrypoint=("vllm", "serve"),
        env=(f"PYTHONPATH={vllm_cpu.SITE_PACKAGES}",),
        fill=vllm_cpu.fill,
        inputs=(Path(vllm_cpu.__file__),),
    ),
    _PROMETHEUS,
    # The same stack has to work with the next major version: tests put it in the place of the other.
    replace(_PROMETHEUS, name="prometheus_3", tag="v3-sid", suite="sid"),
    Recipe(
        name="alertmanager",
        repository="prom/alertmanager",
        tag="v0.28",
        suite="trixie",
        packages=("prometheus-alertmanager", "ca-certificates"),
        entrypoint=("/bin/prometheus-alertmanager",),
        command=("--config.file=/etc/alertmanager/alertmanager.yml", "--storage.path=/alertmanager"),
        user="65534:65534",
        directories=(("/alertmanager", 65534),),
    ),
    Recipe(
        name="node_exporter",
        repository="prom/node-exporter",
        tag="v1.9",
        suite="trixie",
        packages=("prometheus-node-exporter",),
        entrypoint=("/bin/prometheus-node-exporter",),
        user="65534:65534",
    ),
    Recipe(
        name="dcgm_exporter",
        repository="nvidia/k8s/standin-dcgm-exporter",
        tag="4.6.1-4.8.4-standin",
        suite="bookworm",
        packages=("python3",),
        entrypoint=("/usr/bin/dcgm-exporter",),
        files=((_STANDINS / "dcgm-exporter", "/usr/bin/dcgm-exporter"),),
    ),
    Recipe(
        name="grafana",
        repository="grafana/standin-grafana",
        tag="12.4.0-standin",
        suite="bookworm",
        packages=("python3", "python3-yaml", "curl"),
        entrypoint=("/run.sh",),
        user="472:0",
        files=((_STANDINS / "grafana", "/run.sh"), (_STANDINS / "grafana", "/usr/bin/grafana")),
        directories=(("/var/lib/grafana", 472),),
    ),
    # The modules lie where the upstream image has them too. All of the configuration comes from the role.
    Recipe(
        name="gateway",
        repository="library/nginx",
        tag="1.26-trixie",
        suite="trixie",
        packages=("nginx", "libnginx-mod-http-js", "curl"),
        entrypoint=("/usr/sbin/nginx",),
    ),
)


def ensure(recipes: Sequence[Recipe] = RECIPES) -> dict[str, dict[str, str]]:
    """Make and push what the registry's storage lacks; returns the image lock without the registry's address.

    Shape: `{name: {repository, tag, digest, platform_digest, architecture}}`;
    `repository` is a path below the registry.
    """
    locked: dict[str, dict[str, str]] = {}
    with lock("images"):
        missing = [recipe for recipe in recipes if not _known(recipe)]
        if missing:
            with registry.writable() as address:
                for recipe in missing:
                    digest = _make(recipe, address)
                    _record(recipe).write_text(json.dumps({"digest": digest}))
    for recipe in recipes:
        locked[recipe.name] = {
            "repository": recipe.repository,
            "tag": recipe.tag,
            # Made for one architecture: there is no index, and one digest is both.
            "digest": (digest := json.loads(_record(recipe).read_text())["digest"]),
            "platform_digest": digest,
            "architecture": "amd64",
        }
    return locked


def _record(recipe: Recipe) -> Path:
    folder = cache_dir() / "images"
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{recipe.name}-{recipe.key}.json"


def _known(recipe: Recipe) -> bool:
    """A record counts only while the registry's storage still holds the manifest that it names."""
    record = _record(recipe)
    return record.exists() and registry.holds(recipe.repository, json.loads(record.read_text())["digest"])


def _make(recipe: Recipe, registry_address: str) -> str:
    """Build the image, push it to the registry at `registry_address`, and return its digest."""
    work = Path(tempfile.mkdtemp(prefix=f"image-{recipe.name}-", dir=cache_dir()))
    buildah = ("buildah", "--root", work / "storage", "--runroot", work / "run", "--storage-driver", "overlay")
    try:
        tar = work / "root.tar"
        roots.bootstrap(recipe.suite, recipe.packages, tar, roots.options(recipe.suite))
        container = run([*buildah, "from", "scratch"]).strip()
        run([*buildah, "add", "--quiet", container, tar, "/"])
        tar.unlink()
        root = Path(run([*buildah, "mount", container]).strip())
        for source, target in recipe.files:
            place = root / target.lstrip("/")
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, place)
            place.chmod(0o755)
        for path, owner in recipe.directories:
            (root / path.lstrip("/")).mkdir(parents=True, exist_ok=True)
            shutil.chown(root / path.lstrip("/"), owner, owner if recipe.user != "472:0" else 0)
        if recipe.fill is not None:
            recipe.fill(root)
        run([*buildah, "umount", container])
        run([*buildah, "config", *_config(recipe), container])
        # A push compresses, unless the digests of an existing layout are to be kept. Uncompressed is what is wanted:
        # pulls over the lab's bridge are bound by the processor, not by the wire. And no common time stamp for all
        # files: Python would take each of vLLM's compiled modules for outdated at every start.
        layout, target = f"oci:{work / 'layout'}:{recipe.tag}", f"{registry_address}/{recipe.repository}:{recipe.tag}"
        run([*buildah, "commit", "--quiet", "--disable-compression", container, layout])
        run(["skopeo", "copy", "--quiet", "--preserve-digests", "--dest-tls-verify=false", layout, f"docker://{target}"])
        return run(["skopeo", "inspect", "--tls-verify=false", "--format", "{{.Digest}}", f"docker://{target}"]).strip()
    finally:
        run([*buildah, "rm", "--all"])
        shutil.rmtree(work)


def _config(recipe: Recipe) -> list[str]:
    words = ["--entrypoint", json.dumps(list(recipe.entrypoint))]
    if recipe.command:
        words += ["--cmd", " ".join(recipe.command)]
    if recipe.user:
        words += ["--user", recipe.user]
    for variable in recipe.env:
        words += ["--env", variable]
    return words
