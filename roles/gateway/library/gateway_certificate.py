#!/usr/bin/python
"""A certificate for the gateway, signed by an authority of the node's own."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gateway_certificate
short_description: Make the gateway's certificate on the node, and keep it good
description:
  - The authority is made once and lasts ten years, so clients need to be told of it once. Its certificate for the
    gateway lasts a year and is made anew when less than O(renew_days) of it are left, or when names have changed.
  - The keys never leave the node. It needs the program C(openssl).
options:
  state_dir: {type: path, required: true, description: Folder of the manifest; the authority's key lies there.}
  folder: {type: path, required: true, description: "Where C(ca.crt), C(server.crt) and C(server.key) lie."}
  owner: {type: int, required: true, description: User id that reads the key.}
  names: {type: list, elements: str, required: true, description: Names and addresses that it has to be good for.}
  state:
    type: str
    required: true
    choices: [made, site, absent]
    description: C(made) makes it; with C(site) the site has one, and the authority goes; with C(absent) all goes.
  renew_days: {type: int, default: 30, description: How many days have to be left.}
author: [vllm-node maintainers]
"""

RETURN = r"""
authority: {description: PEM of the authority that clients have to trust; or null., type: str, returned: always}
expires: {description: "When the certificate ends, as openssl writes it.", type: str, returned: when there is one}
"""

import ipaddress
import os
import re
import subprocess
import tempfile

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.node_manifest import Manifest, write_atomically

SCOPE = "gateway-tls"
AUTHORITY_DAYS, SERVER_DAYS = 3650, 365
CURVE = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
CONFIGURATION = """[req]
distinguished_name = dn
prompt = no
[dn]
CN = %(name)s
[authority]
basicConstraints = critical, CA:TRUE, pathlen:0
keyUsage = critical, keyCertSign, cRLSign
subjectKeyIdentifier = hash
[server]
basicConstraints = critical, CA:FALSE
keyUsage = critical, digitalSignature
extendedKeyUsage = serverAuth
authorityKeyIdentifier = keyid
subjectAltName = %(names)s
"""


class OpensslError(Exception):
    """openssl is missing, or has refused; the text says which."""


def openssl(*words):
    """Standard output of a call."""
    try:
        done = subprocess.run(["openssl", *words], capture_output=True, text=True, check=False, timeout=60)
    except FileNotFoundError:
        raise OpensslError(
            "this node has no openssl: install it, or set gateway_tls_certificate and gateway_tls_key"
        ) from None
    if done.returncode != 0:
        raise OpensslError("openssl %s: %s" % (words[0], (done.stderr or done.stdout).strip()[-500:]))
    return done.stdout


def entry(name):
    """A name or an address as openssl's configuration has it."""
    try:
        return "IP:%s" % ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return "DNS:" + name


def entries(shown):
    """The same from what openssl shows of a certificate."""
    found = re.findall(r"(DNS|IP Address):([^,\s]+)", shown)
    return {entry(value) if kind == "IP Address" else "DNS:" + value for kind, value in found}


def good(folder, names, days):
    """Whether the certificate is there, signed by the authority, good for exactly these names, and for long enough."""
    authority, server = os.path.join(folder, "ca.crt"), os.path.join(folder, "server.crt")
    if not all(os.path.exists(path) for path in (authority, server, os.path.join(folder, "server.key"))):
        return False
    try:
        openssl("verify", "-CAfile", authority, server)
        openssl("x509", "-in", server, "-noout", "-checkend", str(days * 86400))
    except OpensslError:
        return False
    shown = openssl("x509", "-in", server, "-noout", "-ext", "subjectAltName")
    return entries(shown) == {entry(name) for name in names}


def sign(work, names, authority_key, host):
    """Make `server.crt` and `server.key` in `work`, and the authority too where `authority_key` is not there yet."""
    configuration = os.path.join(work, "openssl.cnf")
    with open(configuration, "w", encoding="utf-8") as handle:
        handle.write(CONFIGURATION % {"name": "vllm-node gateway", "names": ",".join(sorted(set(map(entry, names))))})
    if not os.path.exists(authority_key):
        authority = os.path.join(work, "ca.cnf")
        with open(authority, "w", encoding="utf-8") as handle:
            handle.write(CONFIGURATION % {"name": ("vllm-node gateway CA of " + host)[:64], "names": "DNS:none"})
        openssl(
            *("req", "-x509", *CURVE, "-config", authority, "-extensions", "authority", "-days", str(AUTHORITY_DAYS)),
            *("-keyout", os.path.join(work, "ca.key"), "-out", os.path.join(work, "ca.crt")),
        )
    openssl(
        *("req", "-new", *CURVE, "-config", configuration),
        *("-keyout", os.path.join(work, "server.key"), "-out", os.path.join(work, "server.csr")),
    )


def finish(work, authority, authority_key):
    """Sign the request that `sign` has made."""
    openssl(
        *("x509", "-req", "-in", os.path.join(work, "server.csr"), "-CA", authority, "-CAkey", authority_key),
        *("-set_serial", "0x" + os.urandom(16).hex(), "-days", str(SERVER_DAYS), "-sha256"),
        *("-extfile", os.path.join(work, "openssl.cnf"), "-extensions", "server"),
        *("-out", os.path.join(work, "server.crt")),
    )


def read(path):
    with open(path, "rb") as handle:
        return handle.read()


def make(manifest, args):
    """Make what is not there or no longer good, and install it."""
    folder, owner = args["folder"], args["owner"]
    authority, authority_key = os.path.join(folder, "ca.crt"), os.path.join(args["state_dir"], "gateway-ca.key")
    with tempfile.TemporaryDirectory(prefix="vllm-node-") as work:
        kept = os.path.exists(authority) and os.path.exists(authority_key)
        new_key = os.path.join(work, "ca.key")
        if kept:
            write_atomically(new_key, read(authority_key), 0o600)
            write_atomically(os.path.join(work, "ca.crt"), read(authority), 0o600)
        sign(work, args["names"], new_key, args["names"][0])
        finish(work, os.path.join(work, "ca.crt"), new_key)
        if not kept:
            manifest.install(authority_key, read(new_key), 0o400, 0, 0, SCOPE)
            manifest.install(authority, read(os.path.join(work, "ca.crt")), 0o644, 0, 0, SCOPE)
        for name, mode in (("server.key", 0o400), ("server.crt", 0o644)):
            # nginx is owner and group of what it reads.
            manifest.install(os.path.join(folder, name), read(os.path.join(work, name)), mode, owner, owner, SCOPE)


def ours(manifest, names=None):
    """Paths that this module has made, those of `names` only where given."""
    found = [path for path, known in manifest.data["files"].items() if known.get("scope") == SCOPE]
    return [path for path in found if names is None or os.path.basename(path) in names]


def main():
    module = AnsibleModule(
        argument_spec={
            "state_dir": {"type": "path", "required": True},
            "folder": {"type": "path", "required": True},
            "owner": {"type": "int", "required": True},
            "names": {"type": "list", "elements": "str", "required": True},
            "state": {"type": "str", "required": True, "choices": ["made", "site", "absent"]},
            "renew_days": {"type": "int", "default": 30},
        },
        supports_check_mode=True,
    )
    args = module.params
    try:
        manifest = Manifest.load(args["state_dir"])
    except ValueError as error:
        module.fail_json(msg=str(error))
    if args["state"] != "made":
        # The site's own certificate takes the place of ours when it is installed, and nobody is without one until then.
        obsolete = ours(manifest, ("ca.crt", "gateway-ca.key") if args["state"] == "site" else None)
        for path in () if module.check_mode else obsolete:
            manifest.remove(path)
        module.exit_json(changed=bool(obsolete), authority=None)
    server, authority = (os.path.join(args["folder"], name) for name in ("server.crt", "ca.crt"))
    try:
        fine = server in ours(manifest) and good(args["folder"], args["names"], args["renew_days"])
        if not fine and not module.check_mode:
            make(manifest, args)
        told = {}
        if os.path.exists(authority):
            told["expires"] = openssl("x509", "-in", server, "-noout", "-enddate").partition("=")[2].strip()
            told["authority"] = read(authority).decode()
    except (OpensslError, OSError) as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=not fine, **{"authority": None, **told})


if __name__ == "__main__":
    main()
