"""Asks the images of instances on the node, and judges what they say (the role image_probe)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from vllm_node.preflight import checks_flags
from vllm_node.preflight.findings import Finding, fail, ordered, render, softened, warn
from vllm_node.preflight.reading import Snapshot, mapping, text
from vllm_node.preflight.wanted import Instance, Wanted
from vllm_node.serving import cuda
from vllm_node.serving.flags import cache
from vllm_node.serving.flags.page import FlagTable, PageError, parse

# Variables that decide which libcuda is loaded: an answer holds for them only.
CUDA_VARIABLES = ("LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "VLLM_ENABLE_CUDA_COMPATIBILITY")


def questions(snapshot: Snapshot, wanted: Wanted) -> dict[str, Any]:
    """`images`, `instances` and `driver` as the module `image_probe` takes them: each pinned image of an instance once.

    The page of an image whose flags are in the cache is not asked for.
    """
    images = {image.name: image for image in wanted.images if image.pinned and not image.placeholder}
    users = [each for each in wanted.instances if each.image in images]
    digests = {images[each.image].reference: images[each.image].digest or "" for each in users}
    return {
        "driver": text(snapshot, "gpu", "driver", "loaded") or "",
        "images": [
            {"reference": reference, "page": cache.load(digest) is None} for reference, digest in digests.items()
        ],
        "instances": [
            {
                "name": each.name,
                "reference": images[each.image].reference,
                "gpus": list(each.gpus),
                "env": cuda_variables(each),
            }
            for each in users
        ],
    }


def cuda_variables(instance: Instance) -> dict[str, str]:
    """Those that the instance sets."""
    return {name: value for name, value in instance.env.items() if name in CUDA_VARIABLES}


def judged(snapshot: Snapshot, wanted: Wanted, answer: Mapping[str, Any]) -> list[Finding]:
    """All findings on what the module answered; the flags that it brought are kept for later runs."""
    answers = mapping(answer, "answers")
    tables, unreadable = keep(mapping(answer, "pages"), answers, wanted)
    found = [
        *checks_flags.judged(snapshot, wanted, lambda digest: tables.get(digest) or cache.load(digest)),
        *findings(wanted, answers),
        *unread(wanted, {**mapping(answer, "errors"), **unreadable}),
    ]
    return ordered(softened([replace(each, host=wanted.host) for each in found], wanted.limits.ignore))


def told(host: str, found: list[Finding]) -> str:
    """The findings as text."""
    if not found:
        return f"{host}: images can do what their instances ask for"
    return render(host, found, "no unit of an instance has been installed")


def keep(
    pages: Mapping[str, str], answers: Mapping[str, Mapping[str, Any]], wanted: Wanted
) -> tuple[dict[str, FlagTable], dict[str, str]]:
    """Tables of the pages (reference → text) by digest, put into the cache; and what is no page."""
    names = {image.reference: image.name for image in wanted.images}
    users = {each.image: each.name for each in wanted.instances}
    tables: dict[str, FlagTable] = {}
    unreadable: dict[str, str] = {}
    for reference, page in pages.items():
        digest = reference.rpartition("@")[2]
        version = answers.get(users.get(names.get(reference, ""), ""), {}).get("vllm")
        try:
            tables[digest] = parse(page, version)
            cache.store(digest, tables[digest])
        except PageError as error:
            unreadable[reference] = str(error)
        except OSError:
            pass  # a home that cannot be written: the next run gets the page from the node, which keeps it
    return tables, unreadable


def findings(wanted: Wanted, answers: Mapping[str, Mapping[str, Any]]) -> Iterator[Finding]:
    """What is wrong with the answers (instance → answer of the module `image_probe`)."""
    images = {image.name: image for image in wanted.images}
    for instance in wanted.instances:
        answer = answers.get(instance.name)
        image = images.get(instance.image)
        if answer is None or image is None:
            continue
        where = f"instance {instance.name}, image {image.name} ({image.tag}, {(image.digest or '')[:19]}…)"
        if "python" in answer and not answer["python"]:
            yield fail(
                "image.python",
                f"{where}: there is no python3 in it ({answer.get('error')})",
                "The health check of the instance is a program for it, so the instance would never count as healthy.",
                "Lock an image of vLLM that has python3 on its PATH, as vLLM's own has.",
            )
        elif instance.gpus:
            yield from _cuda(instance, where, answer)
        elif answer.get("error"):
            yield _unclear(where, str(answer["error"]))


def _cuda(instance: Instance, where: str, answer: Mapping[str, Any]) -> Iterator[Finding]:
    code = answer.get("cuinit")
    gpus = ", ".join(instance.gpus)
    if isinstance(code, int) and code != 0:
        known = cuda.told(code)
        library = answer.get("libcuda")
        yield fail(
            "image.cuda",
            f"{where}: cuInit gives {code} ({known.name}) with GPU {gpus}"
            + (f", out of {library}" if library else "")
            + f": {known.means}",
            "vLLM would fail in the same way after it has loaded its libraries.",
            known.mend,
        )
    elif code is None and "python" in answer:
        yield fail(
            "image.libcuda",
            f"{where}: libcuda cannot be loaded with GPU {gpus}: {answer.get('error')}",
            "The CDI specification brings the driver's libraries into the container; without them there is no CUDA.",
            "Write the specification again (systemctl restart gpu-cdi-ready.service, or the site's own way); "
            "compare it with the files of the driver on the node.",
        )
    elif code is None:
        yield _unclear(where, str(answer.get("error")))


def _unclear(where: str, error: str) -> Finding:
    return fail(
        "image.probe",
        f"{where}: it cannot be run for a question: {error}",
        "The instance would be run with the same image and the same GPUs.",
        "The words are those of podman; docs/last-words.md knows the usual ones.",
    )


def unread(wanted: Wanted, errors: Mapping[str, str]) -> Iterator[Finding]:
    """Images that gave no list of flags: their instances are judged by what is known of the version."""
    for image in wanted.images:
        if image.reference in errors:
            yield warn(
                "image.flags",
                f"image {image.name} ({image.tag}): {errors[image.reference]}",
                "Its flags are judged by what is known of the version in its tag, which may be wrong.",
                "Look at it on the node: podman run --rm --pull=never --network=none IMAGE --help=all.",
            )
