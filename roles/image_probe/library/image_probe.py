#!/usr/bin/python
"""Ask the images of vLLM instances what they can do, in short-lived containers, before a unit needs them."""

from __future__ import annotations

DOCUMENTATION = r"""
module: image_probe
short_description: Flags, Python and CUDA of vLLM images, asked once and kept on the node
description:
  - The page of C(vllm serve --help=all) is read once for each digest.
  - In a container with the GPUs of an instance C(cuInit) is called; asked again only when the image, the driver, the
    GPUs, or the variables that choose libcuda change, or when the answer was not a good one.
  - Answers are kept below I(state_dir) and listed in the manifest, so that a teardown removes them.
  - In check mode nothing runs; what is kept is told.
options:
  state_dir: {type: path, required: true, description: Folder of the manifest.}
  images:
    type: list
    elements: dict
    required: true
    description: "C(reference) (repository@digest) of each image, and C(page), whether its page is wanted."
  instances:
    type: list
    elements: dict
    required: true
    description: "C(name), C(reference), C(gpus) (CDI names) and C(env) (variables that choose libcuda) of each."
  driver: {type: str, default: "", description: Version of the driver; another one means that GPUs are asked again.}
  limit_s: {type: int, default: 300, description: How long one container may take.}
author: [vllm-node maintainers]
"""

RETURN = r"""
pages: {description: "Reference → text of the page, for the images whose page is wanted.", type: dict, returned: always}
answers:
  description:
    - Instance → what its image says. C(python) and C(vllm) are versions; C(cuinit) is the number that cuInit gave and
      C(libcuda) the file that it came from, for instances with GPUs; C(error) is what went wrong instead.
  type: dict
  returned: always
asked: {description: What was asked in this call., type: list, returned: always}
absent: {description: References of images that are not on the node., type: list, returned: always}
errors: {description: "Reference → why its page could not be read.", type: dict, returned: always}
"""

import hashlib
import json
import os
import subprocess

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.node_manifest import Manifest

STORAGE = "/var/lib/containers/storage"
SCOPE = "probe"
SCHEMA = 1
# In the container; /tmp and its like are temporary there anyway.
HOME = "/run/home"
CDI_UNIT = "gpu-cdi-ready.service"
# A number below 0 is an answer as well, so the answer travels as JSON.
SCRIPT = """
import json, sys
told = {"python": sys.version.split()[0], "vllm": None}
try:
    from importlib.metadata import version
    told["vllm"] = version("vllm")
except Exception:
    pass
if sys.argv[1:] == ["cuda"]:
    import ctypes
    try:
        told["cuinit"] = ctypes.CDLL("libcuda.so.1").cuInit(0)
        with open("/proc/self/maps") as maps:
            found = {line.split()[-1] for line in maps if "libcuda.so" in line}
        told["libcuda"] = sorted(found)[0] if found else None
    except (OSError, AttributeError) as error:
        told["error"] = str(error)
print(json.dumps(told))
"""


def run(*argv, limit_s=60):
    """(exit code, output, errors) of a program; 124 when it took too long."""
    try:
        done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=limit_s, errors="replace")
    except subprocess.TimeoutExpired:
        return 124, "", "it did not end within %d s" % limit_s
    return done.returncode, done.stdout, done.stderr.strip()


def on_node(reference):
    """Whether the image is there; asking podman would make its storage where there is none."""
    return os.path.isdir(STORAGE) and run("podman", "image", "exists", reference)[0] == 0


def digest_of(reference):
    return reference.rpartition("sha256:")[2]


def path_of(state_dir, reference):
    """Where the answers of an image are kept."""
    return os.path.join(state_dir, "probe", digest_of(reference) + ".json")


def key_of(instance, driver):
    """What an answer of CUDA holds for; an answer for one set of GPUs says nothing about another."""
    given = [driver, sorted(instance["gpus"]), sorted((instance.get("env") or {}).items())]
    return hashlib.sha256(json.dumps(given).encode()).hexdigest()[:24]


class Record:
    """What is kept about one image: {schema, reference, page, answers: {key: answer}}."""

    def __init__(self, state_dir, reference):
        self.path, self.reference = path_of(state_dir, reference), reference
        self.page, self.answers, self.changed = None, {}, False
        try:
            with open(self.path, encoding="utf-8") as handle:
                data = json.load(handle)
            if data["schema"] == SCHEMA and data["reference"] == reference:
                self.page, self.answers = data["page"], data["answers"]
        except (OSError, ValueError, KeyError, TypeError):
            pass  # it is asked again

    def save(self, manifest):
        data = {"schema": SCHEMA, "reference": self.reference, "page": self.page, "answers": self.answers}
        manifest.install(self.path, json.dumps(data).encode(), 0o600, 0, 0, SCOPE)


def container(reference, name, words, limit_s, entrypoint=None, gpus=(), env=None):
    """Run a program of the image, with nothing but a temporary folder to write into."""
    name = "vllm-node-probe-" + name
    argv = [
        *("podman", "run", "--rm", "--name", name, "--label", "io.vllm-node.component=probe", "--pull=never"),
        *("--network=none", "--http-proxy=false", "--read-only", "--tmpfs", HOME + ":rw,size=1g,mode=1777"),
        *("--cap-drop=all", "--security-opt", "no-new-privileges", "--pids-limit=0", "--log-driver=none"),
        # podman itself ends it as well: nobody else does when the connection to this node is lost.
        "--timeout=%d" % limit_s,
    ]
    # A narrow page would be as good; a coloured one would not.
    given = {"HOME": HOME, "XDG_CACHE_HOME": HOME, "COLUMNS": "160", "NO_COLOR": "1", "HF_HUB_OFFLINE": "1"}
    given.update({"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"})
    given.update(env or {})
    for variable, value in sorted(given.items()):
        argv += ["--env", "%s=%s" % (variable, value)]
    for gpu in gpus:
        argv += ["--device", "nvidia.com/gpu=" + gpu]
    if entrypoint:
        argv += ["--entrypoint", entrypoint]
    run("podman", "rm", "--force", "--ignore", "--time=0", name)
    done = run(*argv, reference, *words, limit_s=limit_s + 20)
    if done[0] == 124:
        run("podman", "rm", "--force", "--ignore", "--time=0", name)
    return done


def last_line(text):
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][-400:] if lines else ""


def read_page(reference, gpus, limit_s):
    """(page, problem). Images from before 0.11.1 and others with an own entry point show it by plain --help at best."""
    problem = ""
    for words in (("--help=all",), ("--help",)):
        code, out, err = container(reference, "page", words, limit_s, gpus=gpus)
        # Each flag begins two blanks from the left; where only groups are listed there are hardly any.
        if code == 0 and sum(line.startswith("  --") for line in out.splitlines()) >= 40:
            return out, None
        problem = problem or "%s gives no list of flags (exit code %d): %s" % (
            " ".join(words),
            code,
            last_line(err) or last_line(out) or "no output",
        )
        if code == 124:
            break
    return None, problem


def ask(instance, limit_s):
    """What the image of an instance says with the GPUs of the instance."""
    words = ("-c", SCRIPT) + (("cuda",) if instance["gpus"] else ())
    code, out, err = container(
        instance["reference"], instance["name"], words, limit_s, "python3", instance["gpus"], instance.get("env")
    )
    if code == 0:
        try:
            return json.loads(last_line(out))
        except ValueError:
            return {"error": "an answer that is none: " + last_line(out)}
    said = last_line(err) or last_line(out)
    # 127: podman or crun found no such program in the image.
    missing = code == 127 or ("python3" in said and "not found" in said)
    return {"python": None, "error": said} if missing else {"error": "exit code %d: %s" % (code, said)}


def is_good(instance, answer):
    """Whether an answer may be kept: a bad one is mended outside of what its key holds, and asked for again."""
    return bool(answer.get("python")) and (not instance["gpus"] or answer.get("cuinit") == 0)


def describe_gpus():
    """Have the GPUs described for containers, as the unit that needs them would; the problem, or None."""
    code, out, _ = run("systemctl", "show", "-p", "LoadState,NeedDaemonReload,ActiveState", CDI_UNIT)
    if "NeedDaemonReload=yes" in out or "LoadState=not-found" in out:
        run("systemctl", "daemon-reload")
        code, out, _ = run("systemctl", "show", "-p", "LoadState,NeedDaemonReload,ActiveState", CDI_UNIT)
    if code != 0 or "LoadState=loaded" not in out:
        return None  # the site keeps the specification itself
    code, out, err = run("systemctl", "start", CDI_UNIT, limit_s=300)
    if code == 0:
        return None
    said = run("journalctl", "--unit", CDI_UNIT, "--lines=3", "--output=cat", "--no-pager")[1]
    return "%s does not start: %s" % (CDI_UNIT, last_line(said) or err or out)


def probe(args, check_mode):
    """Everything; returns what the module answers."""
    state_dir, limit_s = args["state_dir"], args["limit_s"]
    there = {image["reference"]: on_node(image["reference"]) for image in args["images"]}
    records = {reference: Record(state_dir, reference) for reference in there}
    asked, errors, answers, pages = [], {}, {}, {}
    described = None
    for instance in args["instances"]:
        record = records[instance["reference"]]
        key = key_of(instance, args["driver"])
        answer = record.answers.get(key)
        if answer is None and there[instance["reference"]]:
            asked.append("instance " + instance["name"])
            if not check_mode:
                if instance["gpus"] and described is None:
                    described = describe_gpus() or ""
                answer = {"error": described} if described and instance["gpus"] else ask(instance, limit_s)
                if is_good(instance, answer):
                    record.answers[key], record.changed = answer, True
        if answer is not None:
            answers[instance["name"]] = answer
    for image in args["images"]:
        reference, record = image["reference"], records[image["reference"]]
        if not image["page"]:
            continue
        users = [each for each in args["instances"] if each["reference"] == reference]
        # A build for GPUs may want to see one before it says anything.
        gpus = next((each["gpus"] for each in users if each["gpus"]), [])
        broken = any(not is_good(each, answers.get(each["name"], {})) for each in users if each["gpus"])
        if record.page is None and there[reference] and not (gpus and broken):
            asked.append("flags of " + reference)
            if not check_mode:
                record.page, problem = read_page(reference, gpus, limit_s)
                record.changed = record.changed or record.page is not None
                if problem:
                    errors[reference] = problem
        if record.page is not None:
            pages[reference] = record.page
    changed = [record for record in records.values() if record.changed]
    if changed:
        manifest = Manifest.load(state_dir)
        for record in changed:
            record.save(manifest)
    return {
        "changed": bool(changed) or (check_mode and bool(asked)),
        "pages": pages,
        "answers": answers,
        "asked": asked,
        "absent": sorted(reference for reference, present in there.items() if not present),
        "errors": errors,
    }


def main():
    module = AnsibleModule(
        argument_spec={
            "state_dir": {"type": "path", "required": True},
            "images": {"type": "list", "elements": "dict", "required": True},
            "instances": {"type": "list", "elements": "dict", "required": True},
            "driver": {"type": "str", "default": ""},
            "limit_s": {"type": "int", "default": 300},
        },
        supports_check_mode=True,
    )
    try:
        module.exit_json(**probe(module.params, module.check_mode))
    except (OSError, ValueError) as error:
        module.fail_json(msg=str(error))


if __name__ == "__main__":
    main()
