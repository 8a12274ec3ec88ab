"""The site's variables against every role's argument specification, before anything runs.

Ansible itself stops at the first role whose arguments are wrong, and never notices a variable that no role
knows. Here all of it is told at once.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml
from ansible.errors import AnsibleError
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator
from ansible.module_utils.errors import RequiredError, UnsupportedError

from vllm_node import gateway_inputs, monitoring_inputs
from vllm_node.preflight.findings import Finding, fail, warn

Spec = Mapping[str, Mapping[str, Any]]
"""Options of one entry point: name to what `meta/argument_specs.yml` says about it."""

_NEAR = 0.85
_HIDDEN = "(hidden)"
_WHY_TYPE = "The role would stop in the middle of its work, or do something else than what was meant."
_WHY_UNKNOWN = "A misspelt variable is silently without effect, and the default is used instead."


def load_specs(roles: Path) -> dict[str, dict[str, Any]]:
    """Options of entry point `main` of every role below `roles` that has an argument specification.

    Raises ValueError, naming the file, when one of them cannot be read.
    """
    found = {}
    for path in sorted(roles.glob("*/meta/argument_specs.yml")):
        try:
            data = yaml.safe_load(path.read_text())
            found[path.parts[-3]] = dict(data["argument_specs"]["main"].get("options") or {})
        except (yaml.YAMLError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{path}: {error}") from None
    return found


def names(specs: Mapping[str, Spec]) -> list[str]:
    """Every variable that a role knows."""
    return sorted({name for spec in specs.values() for name in spec})


def secret_names(specs: Mapping[str, Spec]) -> frozenset[str]:
    """Variables whose values must never be shown or written down."""
    return frozenset(
        name for spec in specs.values() for name, option in spec.items() if _secret(name, option)
    )


def secret_keys(specs: Mapping[str, Spec]) -> dict[str, frozenset[str]]:
    """Keys, by variable, of lists of dictionaries whose values must never be shown."""
    found = {
        name: frozenset(key for key, nested in (option.get("options") or {}).items() if nested.get("no_log"))
        for spec in specs.values()
        for name, option in spec.items()
    }
    return {name: keys for name, keys in found.items() if keys}


def resolve(
    wanted: Iterable[str], variables: Mapping[str, Any], template: Callable[[Any], Any]
) -> tuple[dict[str, Any], dict[str, str]]:
    """Values of the `wanted` variables that are set, and the reason of each that cannot be resolved.

    Only these are resolved: everything else in the inventory is the site's own affair, and may not even be
    resolvable at this point.
    """
    values: dict[str, Any] = {}
    undefined: dict[str, str] = {}
    for name in wanted:
        if name not in variables:
            continue
        try:
            values[name] = template(variables[name])
        except AnsibleError as error:
            undefined[name] = " ".join(str(error).split())
    return values, undefined


def with_defaults(values: Mapping[str, Any], specs: Mapping[str, Spec]) -> dict[str, Any]:
    """The values, and for what the site does not set the default of the specification."""
    defaults = {
        name: option["default"]
        for spec in specs.values()
        for name, option in spec.items()
        if option.get("default") is not None
    }
    return {**defaults, **values}


def check(
    values: Mapping[str, Any],
    specs: Mapping[str, Spec],
    *,
    defined: Iterable[str] = (),
    undefined: Mapping[str, str] | None = None,
    host: str = "",
) -> list[Finding]:
    """Findings `input.missing`, `input.type` and `input.unknown`, and those of `monitoring_inputs` and
    `gateway_inputs`.

    `values` are the site's values of variables that a role knows; `defined` the names of all variables of the
    node; `undefined` those whose template could not be resolved, with the reason.
    """
    broken = dict(undefined or {})
    found = [_undefined(name, reason) for name, reason in sorted(broken.items())]
    done: set[str] = set()
    for role, spec in sorted(specs.items()):
        # A variable that several roles share is looked at once.
        own = {name: option for name, option in spec.items() if name not in done and name not in broken}
        done.update(own)
        found += _wrong(role, own, {name: value for name, value in values.items() if name in own})
    found += _unknown(specs, [*defined, *values])
    found += monitoring_inputs.check(values)
    found += gateway_inputs.check(values)
    return [replace(each, host=host) for each in found]


def _undefined(name: str, reason: str) -> Finding:
    return fail(
        "input.missing",
        f"{name} cannot be resolved: {reason}",
        "Its value is a template over a variable that the inventory does not define.",
        "Define that variable for the node, in the vault if it is a secret.",
    )


def _wrong(role: str, spec: Spec, values: Mapping[str, Any]) -> Iterator[Finding]:
    # A component that is switched off needs nothing.
    off = str(values.get(f"{role}_enabled", True)).lower() in ("false", "no", "off", "0")
    for name, option in sorted(spec.items()):
        given = {name: values[name]} if name in values else {}
        for missing, message in _errors(name, option, given):
            if missing and not off:
                yield fail(
                    "input.missing",
                    f"role {role}: {message}",
                    "The role cannot do without it.",
                    "Set it in the inventory, in the vault if it is a secret.",
                )
            elif not missing:
                yield fail(
                    "input.type", f"role {role}: {message}", _WHY_TYPE, "Correct the value in the inventory."
                )
        if given:
            yield from _unknown_keys(name, option, given[name])


def _errors(name: str, option: Mapping[str, Any], given: Mapping[str, Any]) -> Iterator[tuple[bool, str]]:
    """What Ansible has against one variable: whether something is missing, and its words.

    One variable at a time, because Ansible's own words do not always say which one is meant.
    """
    try:
        errors = list(ArgumentSpecValidator({name: dict(option)}).validate(dict(given)).errors)
    except (TypeError, ValueError, AttributeError, OverflowError) as reason:
        # The validator trips over some values, such as a list where a name is looked up, or an endless number.
        yield False, f"{name} has a value of the wrong form ({type(reason).__name__})"
        return
    found = []
    for error in errors:
        # Unknown keys are told with a guess at what was meant.
        if not isinstance(error, UnsupportedError):
            words = str(error.msg)
            if given and _secret(name, option):
                words = words.replace(str(given[name]), _HIDDEN)
            found.append((isinstance(error, RequiredError), words))
    # Ansible tells some mistakes twice, once without the name: that one is needed only when it stands alone.
    named = [each for each in found if name in each[1]]
    yield from named or [(missing, f"{name}: {words}") for missing, words in found]


def _secret(name: str, option: Mapping[str, Any]) -> bool:
    """Whether a value must never be shown."""
    return bool(option.get("no_log")) or re.search(r"(password|secret|token)s?$", name) is not None


def _unknown_keys(place: str, option: Mapping[str, Any], value: Any) -> Iterator[Finding]:
    """Keys that nested options do not know."""
    options = option.get("options")
    if not isinstance(options, Mapping):
        return
    if isinstance(value, list | tuple):
        for number, entry in enumerate(value):
            label = entry.get("name", number) if isinstance(entry, Mapping) else number
            yield from _unknown_keys(f"{place}[{label}]", option, entry)
        return
    if not isinstance(value, Mapping):
        return
    aliases = {alias for each in options.values() for alias in each.get("aliases") or []}
    for key in value:
        if key in options:
            yield from _unknown_keys(f"{place}.{key}", options[key], value[key])
        elif key not in aliases:
            yield fail(
                "input.unknown",
                f"{place} has the unknown key {key}",
                _WHY_UNKNOWN,
                _guess(str(key), options) or f"Remove it; known are {', '.join(sorted(options))}.",
            )


def _unknown(specs: Mapping[str, Spec], defined: Iterable[str]) -> Iterator[Finding]:
    known = names(specs)
    for name in sorted(set(defined) - set(known)):
        if _internal(name):
            continue
        # The longest prefix that fits: vllm_node_x belongs to nobody else when there is a role vllm_node.
        role = max((role for role in specs if name.startswith(f"{role}_")), key=len, default=None)
        if role is not None:
            yield fail(
                "input.unknown",
                f"no role knows the variable {name}",
                _WHY_UNKNOWN,
                _guess(name, known) or f"Remove it, or rename it so that it does not start with {role}_.",
            )
        elif (guess := _guess(name, known)) is not None:
            yield warn("input.unknown", f"no role knows the variable {name}", _WHY_UNKNOWN, guess)


def _internal(name: str) -> bool:
    """Ansible's own variables, roles' internals and what tasks register."""
    return name.startswith(("_", "ansible_")) or bool(re.search(r"_result$", name))


def _guess(name: str, known: Iterable[str]) -> str | None:
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=_NEAR if "_" in name else 0.6)
    return f"Did you mean {near[0]}?" if near else None
