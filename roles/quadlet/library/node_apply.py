#!/usr/bin/python
"""Install the staged files and secrets of one scope on a node in a single call."""

from __future__ import annotations

DOCUMENTATION = r"""
module: node_apply
short_description: Install staged files and secrets, remove what is no longer wanted, and record it all
description:
  - Units below C(/etc/containers/systemd) are given to the node's own Quadlet generator first; a complaint
    stops the module before anything is installed.
  - C(@INPUTS@) in a unit is replaced by a hash over the unit, the files that it mounts, and its secrets. Files that
    are C(live) do not count: their program takes them up without a restart.
  - Then each check judges its folder with a program of the image that will read it; a complaint stops the module too.
  - Volumes and secrets that somebody else made are never taken over, because a teardown would remove them.
  - What changes is a generation in the history of the node, which is told of it before and after; see
    C(node_generations). With O(generation) the files of one are installed again, byte for byte. With O(keep), older
    ones go, and so do images of ours that none of the others names.
options:
  state_dir: {type: path, required: true, description: Folder of the manifest.}
  scope: {type: str, description: Files of the same scope that are not listed are removed.}
  files:
    type: list
    elements: dict
    default: []
    description: Files to install.
    options:
      path: {type: path, required: true, description: Where it goes.}
      content: {type: str, required: true, no_log: false, description: What is in it.}
      mode: {type: str, default: "0644", description: Octal mode.}
      owner: {type: int, default: 0, description: User id.}
      group: {type: int, default: 0, description: Group id.}
      live: {type: bool, default: false, description: Whether its program takes it up without a restart.}
  secret_files:
    type: list
    elements: dict
    default: []
    description: Files whose content appears in no log and no difference. The options are those of O(files).
  secrets:
    type: list
    elements: dict
    default: []
    no_log: false
    description: Podman secrets that must exist with this value.
    options:
      name: {type: str, required: true, description: Its name.}
      value: {type: str, required: true, no_log: true, description: What it is.}
  volumes: {type: list, elements: str, default: [], description: Names of the volumes that the units will make.}
  checks:
    type: list
    elements: dict
    default: []
    description: Programs that judge staged files before any is installed; skipped while the node lacks the image.
    options:
      reference: {type: str, required: true, description: "The image: repository and digest."}
      folder: {type: path, required: true, description: Folder whose staged files are judged.}
      at: {type: path, required: true, description: Where the program finds them.}
      argv: {type: list, elements: str, required: true, description: Program of the image and its words.}
      user: {type: int, description: User and group id that it runs as. The image's own when left out.}
  generation: {type: int, default: 0, description: Number of a generation that is installed instead of O(files).}
  run:
    type: dict
    default: {}
    description: "C(id), C(verb), C(who) and C(toolkit) of this run, and the C(back_to) of a rollback, for the history."
  units: {type: list, elements: dict, default: [], description: What was staged of units, for the history.}
  keep: {type: int, default: 0, description: How many generations are kept; 0 drops none.}
author: [vllm-node maintainers]
"""

RETURN = r"""
changed_files: {description: Paths that were written., type: list, returned: always}
removed_files: {description: Paths that were removed., type: list, returned: always}
changed_secrets: {description: Names of the secrets that were written., type: list, returned: always}
checked: {description: Folders that were judged by a program of their image., type: list, returned: always}
generation: {description: Number of the generation that this made., type: int, returned: when it made one}
"""

import hashlib
import hmac
import json
import os
import re
import subprocess
import tempfile

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.generation_recorder import Recorder
from ansible.module_utils.node_generations import SCOPES, Store
from ansible.module_utils.node_manifest import Manifest

UNIT_FOLDER = "/etc/containers/systemd/"
PLAIN_UNIT_FOLDER = "/etc/systemd/system/"
GENERATORS = ("/usr/libexec/podman/quadlet", "/usr/lib/systemd/system-generators/podman-system-generator")
PLACEHOLDER = "@INPUTS@"
COMPLAINT = re.compile(r"unsupported key|converting |error (occurred|loading|parsing)", re.IGNORECASE)
STORAGE = "/var/lib/containers/storage"
CHECK_LIMIT_S = 120


def inputs_hash(unit, files, secrets, salt):
    """Hash over a unit's text, the files below its `Volume=` host paths, and its secrets (keyed with `salt`)."""
    digest = hashlib.sha256(unit.encode())
    # The node's whole root, which the node exporter looks at, makes no configuration of all that is in it.
    mounted = re.findall(r"^(?:Volume|EnvironmentFile)=(/[^:\n]+)", unit, re.MULTILINE)
    for path in sorted(files):
        if any(path == place or path.startswith(place.rstrip("/") + "/") for place in mounted):
            digest.update(("\0%s\0%s" % (path, files[path])).encode())
    for name in sorted(re.findall(r"^Secret=([^,\n]+)", unit, re.MULTILINE)):
        value = secrets.get(name, "")
        digest.update(hmac.new(bytes.fromhex(salt), value.encode(), "sha256").digest())
    return digest.hexdigest()[:24]


def fill_in(wanted, secrets, salt):
    """Replace the placeholder of each unit; `wanted` is {path: file}."""
    contents = {path: entry["content"] for path, entry in wanted.items() if not entry.get("live")}
    for entry in wanted.values():
        if PLACEHOLDER in entry["content"]:
            value = inputs_hash(entry["content"], contents, secrets, salt)
            entry["content"] = entry["content"].replace(PLACEHOLDER, value)


def complaints(units):
    """What the node's Quadlet generator says against `units` ({file name: text}); an empty string is consent."""
    generator = next((path for path in GENERATORS if os.access(path, os.X_OK)), None)
    if generator is None:
        return "no Quadlet generator found (%s): is podman 5.4 or later installed?" % " or ".join(GENERATORS)
    with tempfile.TemporaryDirectory(prefix="vllm-node-") as stage:
        for name, text in units.items():
            with open(os.path.join(stage, name), "w", encoding="utf-8") as handle:
                handle.write(text)
        done = subprocess.run(
            [generator, "-dryrun"],
            env={**os.environ, "QUADLET_UNIT_DIRS": stage},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        lines = [line for line in done.stderr.splitlines() if COMPLAINT.search(line)]
        for name in units:
            base, kind = os.path.splitext(name)
            service = base + ("" if kind == ".container" else "-" + kind[1:]) + ".service"
            # A unit that the generator does not like is dropped in silence by some versions.
            if "---%s---" % service not in done.stdout:
                lines.append("%s gives no %s" % (name, service))
        if done.returncode != 0 and not lines:
            lines = done.stderr.splitlines()[-5:]
        return "\n".join(lines)


def below(path, folder):
    return path.startswith(folder.rstrip("/") + "/")


def judgement(check, wanted):
    """What a program of an image says against the files of its folder; None when the node lacks the image."""
    there = os.path.isdir(STORAGE) and subprocess.run(
        ["podman", "image", "exists", check["reference"]], check=False, capture_output=True
    )
    if not there or there.returncode != 0:
        return None
    with tempfile.TemporaryDirectory(prefix="vllm-node-") as stage:
        for path, entry in wanted.items():
            if below(path, check["folder"]):
                copy = os.path.join(stage, os.path.relpath(path, check["folder"]))
                os.makedirs(os.path.dirname(copy), exist_ok=True)
                with open(copy, "w", encoding="utf-8") as handle:
                    handle.write(entry["content"])
                os.chmod(copy, int(entry["mode"], 8))
                os.chown(copy, entry["owner"], entry["group"])
        # The program runs as the image's user, whatever the umask here is.
        for folder, _, _ in os.walk(stage):
            os.chmod(folder, 0o755)  # noqa: S103 - what is secret in it is closed itself
        program, words = check["argv"][0], check["argv"][1:]
        try:
            done = subprocess.run(
                [
                    *("podman", "run", "--rm", "--pull=never", "--network=none", "--http-proxy=false", "--read-only"),
                    *("--cap-drop=all", "--pids-limit=0", "--log-driver=none", "--entrypoint", program),
                    *(("--user", "%d:%d" % (check["user"], check["user"])) if check.get("user") else ()),
                    *("--volume", "%s:%s:ro,Z" % (stage, check["at"]), check["reference"], *words),
                ],
                capture_output=True,
                text=True,
                timeout=CHECK_LIMIT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return "it did not end within %s s" % CHECK_LIMIT_S
    return "" if done.returncode == 0 else (done.stdout + done.stderr).strip() or "exit code %d" % done.returncode


def current_state(path):
    """(content, mode, owner, group) of a regular file, or None."""
    try:
        status = os.lstat(path)
        if os.path.islink(path):
            return None
        with open(path, "rb") as handle:
            return handle.read(), status.st_mode & 0o7777, status.st_uid, status.st_gid
    except FileNotFoundError:
        return None


def stored_secrets(names):
    """Values of the podman secrets among `names` that exist."""
    # Asking podman makes its storage; a node that never ran it has no secrets either.
    if not names or not os.path.isdir(os.path.join(STORAGE, "secrets")):
        return {}
    found = {}
    for name in names:
        done = subprocess.run(
            ["podman", "secret", "inspect", "--showsecret", name], capture_output=True, text=True, check=False
        )
        if done.returncode == 0:
            found[name] = json.loads(done.stdout)[0].get("SecretData")
    return found


def existing_volumes(names):
    """Those of `names` that are podman volumes already."""
    if not names or not os.path.isdir(STORAGE):
        return []
    done = subprocess.run(["podman", "volume", "ls", "--quiet"], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError("podman volume ls: " + done.stderr.strip())
    return sorted(set(names) & set(done.stdout.split()))


def foreign(kind, names, manifest):
    """A sentence for each of the existing `names` that the manifest does not list."""
    return [
        "%s %s exists already and vllm-node did not make it: remove it (podman %s rm %s) or give it another name"
        % (kind, name, kind, name)
        for name in names
        if name not in manifest.data[kind + "s"]
    ]


def stop_units_of(paths):
    """Stop the services of unit files before any file goes: systemd cannot stop what it no longer knows."""
    units = []
    for path in paths:
        base, kind = os.path.splitext(os.path.basename(path))
        if path.startswith(UNIT_FOLDER) and kind == ".container":
            units.append(base + ".service")
        elif path.startswith(PLAIN_UNIT_FOLDER) and kind == ".service":
            units.append(base + kind)
    if units:
        subprocess.run(["systemctl", "stop", *units], check=False, capture_output=True)


def of_generation(store, number):
    """Files of a generation, as files to install."""
    return {
        path: {
            "path": path,
            "content": entry["content"].decode(),
            "mode": "%04o" % entry["mode"],
            "live": False,
            **{key: entry[key] for key in ("owner", "group", "scope")},
        }
        for path, entry in store.files(number).items()
    }


def target_of(entry):
    """A file as the history has it."""
    told = {key: entry[key] for key in ("owner", "group", "scope")}
    return {"content": entry["content"].encode(), "mode": int(entry["mode"], 8), **told}


def forget_images(references, manifest):
    """Remove images of ours that nobody can go back to any more. One that is in use stays, for the teardown."""
    for reference in references:
        if reference in manifest.data["images"]:
            done = subprocess.run(["podman", "rmi", reference], check=False, capture_output=True, text=True)
            if done.returncode == 0:
                del manifest.data["images"][reference]
                manifest.save()


def difference(path, before, after):
    """An entry for `--diff`."""
    return {"before_header": path, "after_header": path, "before": before, "after": after}


def file_options(secret):
    """Argument spec of one file; the content of a secret one appears in no log and no difference."""
    return {
        "path": {"type": "path", "required": True},
        "content": {"type": "str", "required": True, "no_log": secret},
        "mode": {"type": "str", "default": "0644"},
        "owner": {"type": "int", "default": 0},
        "group": {"type": "int", "default": 0},
        "live": {"type": "bool", "default": False},
    }


def main():
    module = AnsibleModule(
        argument_spec={
            "state_dir": {"type": "path", "required": True},
            "scope": {"type": "str"},
            "files": {"type": "list", "elements": "dict", "default": [], "options": file_options(secret=False)},
            "secret_files": {
                "type": "list",
                "elements": "dict",
                "default": [],
                "no_log": False,
                "options": file_options(secret=True),
            },
            # The values are hidden, the names are not: they stand in units, differences and errors.
            "secrets": {
                "type": "list",
                "elements": "dict",
                "default": [],
                "no_log": False,
                "options": {
                    "name": {"type": "str", "required": True},
                    "value": {"type": "str", "required": True, "no_log": True},
                },
            },
            "volumes": {"type": "list", "elements": "str", "default": []},
            "checks": {
                "type": "list",
                "elements": "dict",
                "default": [],
                "options": {
                    "reference": {"type": "str", "required": True},
                    "folder": {"type": "path", "required": True},
                    "at": {"type": "path", "required": True},
                    "argv": {"type": "list", "elements": "str", "required": True},
                    "user": {"type": "int"},
                },
            },
            "generation": {"type": "int", "default": 0},
            "run": {"type": "dict", "default": {}},
            "units": {"type": "list", "elements": "dict", "default": []},
            "keep": {"type": "int", "default": 0},
        },
        required_one_of=[("scope", "generation")],
        supports_check_mode=True,
    )
    args = module.params
    store = Store(args["state_dir"])
    try:
        manifest = Manifest.load(args["state_dir"])
        wanted = of_generation(store, args["generation"]) if args["generation"] else {}
    except ValueError as error:
        module.fail_json(msg=str(error))
    recorder = Recorder(store, manifest, {"id": "", **args["run"]})
    wanted.update({entry["path"]: {**entry, "scope": args["scope"]} for entry in args["files"] + args["secret_files"]})
    hidden = {entry["path"] for entry in args["secret_files"]}
    scopes = SCOPES if args["generation"] else (args["scope"],)
    # Nobody keeps what a secret was, so that nobody goes back to it.
    kept = recorder.secret_paths() if args["generation"] else ()
    wanted = {path: entry for path, entry in wanted.items() if path not in kept}
    secrets = {entry["name"]: entry["value"] for entry in args["secrets"]}
    fill_in(wanted, secrets, manifest.data["salt"])

    units = {os.path.basename(p): e["content"] for p, e in wanted.items() if p.startswith(UNIT_FOLDER)}
    if units:
        said = complaints(units)
        if said:
            module.fail_json(
                msg="the Quadlet generator of this node refuses the units; nothing was installed:\n" + said
            )

    stored = stored_secrets(secrets)
    new_secrets = [name for name, value in secrets.items() if stored.get(name) != value]
    try:
        strangers = foreign("volume", existing_volumes(args["volumes"]), manifest)
    except RuntimeError as error:
        module.fail_json(msg=str(error))
    strangers += foreign("secret", [name for name in new_secrets if name in stored], manifest)
    if strangers:
        module.fail_json(msg="\n".join(strangers))
    changed, diffs = [], []
    for path, entry in wanted.items():
        target = (entry["content"].encode(), int(entry["mode"], 8), entry["owner"], entry["group"])
        before = current_state(path)
        if before != target:
            changed.append(path)
            old = before[0].decode(errors="replace") if before else ""
            texts = ("(hidden)\n", "(hidden, and changed)\n") if path in hidden else (old, entry["content"])
            diffs.append(difference(path, *texts))
    obsolete = [
        path
        for path, entry in manifest.data["files"].items()
        if entry.get("scope") in scopes and path not in wanted and path not in kept
    ]
    diffs += [difference(path, "(installed by vllm-node)\n", "") for path in obsolete]
    checked, refusals = [], []
    for check in args["checks"]:
        if any(below(path, check["folder"]) for path in changed + obsolete):
            said = judgement(check, wanted)
            checked += [check["folder"]] if said is not None else []
            refusals += ["%s refuses %s:\n%s" % (" ".join(check["argv"]), check["folder"], said)] if said else []
    if refusals:
        module.fail_json(msg="nothing was installed, and what runs goes on as it was. " + "\n".join(refusals))

    changing = bool(changed or obsolete or new_secrets) and set(scopes) <= set(SCOPES)
    if not module.check_mode:
        if changing:
            targets = {path: target_of(entry) for path, entry in wanted.items()}
            generation = recorder.begin(scopes, targets, hidden, secrets, args["units"])
        else:
            recorder.nothing_changed()
        for name in new_secrets:
            manifest.add("secrets", name)
            done = subprocess.run(
                ["podman", "secret", "create", "--replace", name, "-"],
                input=secrets[name],
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode != 0:
                module.fail_json(msg="podman secret %s cannot be made: %s" % (name, done.stderr.strip()))
        for volume in args["volumes"]:
            manifest.add("volumes", volume)
        stop_units_of(obsolete)
        for path in obsolete:
            manifest.remove(path)
        for path in changed:
            entry = wanted[path]
            manifest.install(
                path,
                entry["content"].encode(),
                int(entry["mode"], 8),
                entry["owner"],
                entry["group"],
                entry["scope"],
                secret=path in hidden,
            )
        if changing:
            forget_images(recorder.installed(args["keep"]), manifest)
    module.exit_json(
        changed=bool(changed or obsolete or new_secrets),
        changed_files=changed,
        removed_files=obsolete,
        changed_secrets=new_secrets,
        checked=checked,
        diff=diffs,
        **({"generation": generation["number"]} if changing and not module.check_mode else {}),
    )


if __name__ == "__main__":
    main()
