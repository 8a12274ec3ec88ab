"""A bundle as what a site does not have yet: a registry and a repository of RPMs, read-only, for the first nodes.

The registry is the one that distributions package (distribution, formerly docker-registry). It serves links into the
bundle, takes nothing, and is asked for every manifest before anybody is told of it.
"""

from __future__ import annotations

import hashlib
import ipaddress
import os
import shutil
import socket
import ssl
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import yaml
from cryptography import x509

from vllm_node.bundle import oci, registry_storage, rpm_server
from vllm_node.bundle.layout import BundleError, Manifest, Part
from vllm_node.lab import pki
from vllm_node.paths import state_dir

PROGRAMS = ("docker-registry", "registry")
_NOT_INSTALLED = (
    "there is no registry program here: install docker-registry (Debian, Ubuntu) or docker-distribution (Fedora, "
    "SUSE), or put the program `registry` of a release of distribution on the PATH"
)
_START_LIMIT_S = 30
_END_LIMIT_S = 10
_ASK_LIMIT_S = 10
_FRESH_DAYS = 30
_ACCEPT = ", ".join(
    (
        oci.OCI_INDEX,
        oci.OCI_MANIFEST,
        "application/vnd.docker.distribution.manifest.list.v2+json",
        "application/vnd.docker.distribution.manifest.v2+json",
    )
)
_LAST_LINES = 5


@dataclass(frozen=True)
class Tls:
    """Files, PEM. ca: the authority that clients are to trust; None where it is the site's own affair."""

    certificate: Path
    key: Path
    ca: Path | None = None


@dataclass(frozen=True)
class Request:
    """Where a bundle is offered. address: name or IP address of this machine, as nodes reach it; rpm_port: None offers
    no RPMs; tls: None has an authority made."""

    address: str
    port: int
    rpm_port: int | None = None
    tls: Tls | None = None


@dataclass(frozen=True)
class Offer:
    """What is offered: `host:port` of both, the files of TLS, and upstream hosts of the images' names in the lock."""

    registry: str
    rpms: str | None
    tls: Tls
    upstreams: tuple[str, ...]
    images: int
    process: subprocess.Popen[bytes]

    def variables(self) -> dict[str, object]:
        """Variables of an inventory that lead nodes here."""
        ca = f"{{{{ lookup('ansible.builtin.file', '{self.tls.ca}') }}}}" if self.tls.ca else None
        found: dict[str, object] = {"container_host_registry_address": self.registry}
        found |= {"container_host_registry_ca": ca} if ca else {}
        mirrors = [{"upstream": one, "mirror": self.registry} for one in self.upstreams if one != self.registry]
        found |= {"container_host_mirrors": mirrors} if mirrors else {}
        found |= {"packages_repository": f"https://{self.rpms}/"} if self.rpms else {}
        return found | ({"packages_repository_ca": ca} if ca and self.rpms else {})

    def wait(self) -> None:
        """Until the registry ends by itself, which it should not. Raises BundleError then."""
        code = self.process.wait()
        raise BundleError(f"the registry has ended with {code}")


@contextmanager
def serving(bundle: Path, request: Request) -> Iterator[Offer]:
    """Offer a bundle for as long as the context lasts; nothing is left of it. Raises BundleError."""
    parts = Manifest.read(bundle).images()
    program = find_program()
    rpms = bundle / "rpms"
    if request.rpm_port is not None and not (rpms / "repodata/repomd.xml").is_file():
        raise BundleError(f"{rpms} is no repository of RPMs; leave --rpm-port out, or make the bundle with RPMs")
    upstreams = tuple(dict.fromkeys(str(part.details["repository"]).partition("/")[0] for part in parts))
    registry = joined(request.address, request.port)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="vllm-node-serve-")))
        names = [request.address, *(host_of(one) for one in upstreams)]
        tls = request.tls or certificate(list(dict.fromkeys(names)))
        context = _server_context(tls)
        try:
            offered = _fill(folder, bundle, parts)
            for port in (request.port, request.rpm_port):
                if port is not None:
                    _check_free(request.address, port)
            process = stack.enter_context(_registry(program, folder, registry, tls))
            _check(process, folder, registry, tls, offered)
            if request.rpm_port is not None:
                stack.enter_context(rpm_server.serving(rpms, (request.address, request.rpm_port), context))
        except OSError as error:
            raise BundleError(f"the bundle cannot be offered at {request.address}: {error}") from error
        offered_rpms = joined(request.address, request.rpm_port) if request.rpm_port is not None else None
        yield Offer(registry, offered_rpms, tls, upstreams, len(parts), process)


def find_program() -> str:
    """The registry program. Raises BundleError where there is none."""
    for name in PROGRAMS:
        path = shutil.which(name)
        if path is not None:
            # Others are called registry as well.
            told = subprocess.run([path, "--version"], capture_output=True, text=True, stdin=subprocess.DEVNULL)
            if "distribution" in told.stdout:
                return path
    raise BundleError(_NOT_INSTALLED)


def joined(address: str, port: int) -> str:
    """`host:port`, with brackets around an address of IPv6."""
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def host_of(place: str) -> str:
    """`host:port` without the port."""
    return place.rpartition(":")[0].strip("[]") if place.rpartition(":")[2].isdigit() else place


def certificate(names: Sequence[str]) -> Tls:
    """An authority and a certificate for these names: those of the last call, as long as they are good for a while.

    They are kept, so that nodes that were told of the authority trust the next call too.
    """
    key = hashlib.sha256("\n".join(sorted(names)).encode()).hexdigest()[:12]
    folder = state_dir() / "serve" / key
    found = Tls(folder / "server.crt", folder / "server.key", folder / "ca.crt")
    if not _is_fresh(found):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryDirectory(dir=folder) as partial:
            pki.make(Path(partial), *names, authority="vllm-node bundle serve")
            for path in (found.key, found.ca, found.certificate):
                assert path is not None
                (Path(partial) / path.name).replace(path)
    return found


def _is_fresh(tls: Tls) -> bool:
    try:
        end = x509.load_pem_x509_certificate(tls.certificate.read_bytes()).not_valid_after_utc
        left_s = end.timestamp() - time.time()
        return left_s > _FRESH_DAYS * 86400 and tls.key.is_file() and bool(tls.ca and tls.ca.is_file())
    except (OSError, ValueError):
        return False


def _server_context(tls: Tls) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(tls.certificate, tls.key)
    except (OSError, ssl.SSLError) as error:
        raise BundleError(f"{tls.certificate} and {tls.key} are no certificate with its key: {error}") from error
    return context


def _check_free(address: str, port: int) -> None:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except OSError as error:
            raise BundleError(
                f"nothing can listen at {joined(address, port)}: {error.strerror}. Give an address of this machine and "
                "a free port"
            ) from error


def _fill(folder: Path, bundle: Path, parts: Sequence[Part]) -> dict[str, list[str]]:
    storage = folder / "storage"
    storage.mkdir()
    return registry_storage.fill(storage, bundle, parts)


@contextmanager
def _registry(program: str, folder: Path, address: str, tls: Tls) -> Iterator[subprocess.Popen[bytes]]:
    config = {
        "version": "0.1",
        "log": {"level": "error", "accesslog": {"disabled": True}},
        "storage": {
            "filesystem": {"rootdirectory": str(folder / "storage")},
            "maintenance": {"readonly": {"enabled": True}, "uploadpurging": {"enabled": False}},
        },
        "http": {
            "addr": address,
            "secret": os.urandom(16).hex(),
            "tls": {"certificate": str(tls.certificate.absolute()), "key": str(tls.key.absolute())},
        },
    }
    (folder / "config.yml").write_text(yaml.safe_dump(config))
    # When we are killed it has nobody left who would end it.
    follow = ["setpriv", "--pdeathsig", "TERM", "--"] if shutil.which("setpriv") else []
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [*follow, program, "serve", str(folder / "config.yml")],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            # Ctrl-C is for us; we end it.
            start_new_session=True,
            env={**_environment(), "OTEL_TRACES_EXPORTER": "none"},
        )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(_END_LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _environment() -> Mapping[str, str]:
    """Ours, without what would change the registry's configuration."""
    return {name: value for name, value in os.environ.items() if not name.startswith("REGISTRY_")}


def _check(
    process: subprocess.Popen[bytes], folder: Path, address: str, tls: Tls, offered: Mapping[str, Sequence[str]]
) -> None:
    """Wait until the registry answers; it has to give each manifest byte for byte. Raises BundleError."""
    context = ssl.create_default_context(cafile=str(tls.ca or tls.certificate))
    if tls.ca is None:
        # The site's own certificate: whether it is right is between its clients and its authority.
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    # Straight there: a proxy would not find its way to an address of this machine.
    handlers = (urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context))
    opener = urllib.request.build_opener(*handlers)
    opener.addheaders = [("Accept", _ACCEPT)]
    end = time.monotonic() + _START_LIMIT_S
    while not _answers(f"https://{address}/v2/", opener):
        if process.poll() is not None or time.monotonic() > end:
            said = (folder / "log").read_text(errors="replace").strip().splitlines()[-_LAST_LINES:]
            raise BundleError("\n".join([f"the registry does not answer at {address}; it says:", *said]))
        time.sleep(0.1)
    for path, digests in offered.items():
        for digest in digests:
            url = f"https://{address}/v2/{path}/manifests/{digest}"
            try:
                with opener.open(url, timeout=_ASK_LIMIT_S) as answer:
                    found = f"sha256:{hashlib.sha256(answer.read()).hexdigest()}"
            except OSError as error:
                raise BundleError(f"the registry does not give {path}@{digest}: {error}") from error
            if found != digest:
                raise BundleError(f"the registry gives {found} for {path}@{digest}; run `vllm-node bundle verify`")


def _answers(url: str, opener: urllib.request.OpenerDirector) -> bool:
    try:
        opener.open(url, timeout=_ASK_LIMIT_S).close()
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False
    return True


def is_everywhere(address: str) -> bool:
    """Whether an address stands for all of this machine's: no name that nodes could use."""
    try:
        return ipaddress.ip_address(address).is_unspecified
    except ValueError:
        return not address
