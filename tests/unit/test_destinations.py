"""Receivers of alerts and stores of samples: their secrets, their certificates, and what is wrong with them."""

from __future__ import annotations

from typing import Any

import pytest

from vllm_node.destinations import destination_authorities, destination_secrets, problems, scrape_target

HOOK = {"name": "on-call", "kind": "webhook", "url": "https://pager.example/x", "token": "t", "ca": "PEM"}
MAIL = {"name": "ops", "kind": "mail", "to": "ops@example.org"}
RELAY = {"alertmanager_mail_smarthost": "mail.example:25", "alertmanager_mail_from": "node@example.org"}
STORE = {"name": "long", "url": "https://store.example/write", "username": "u", "password": "p"}


def test_only_what_an_entry_has_becomes_a_secret() -> None:
    assert destination_secrets([HOOK, MAIL], "alertmanager", ["url", "token"]) == [
        {"name": "alertmanager-on-call-url", "value": "https://pager.example/x"},
        {"name": "alertmanager-on-call-token", "value": "t"},
    ]


def test_a_certificate_is_a_file_that_is_taken_up_without_a_restart() -> None:
    expected = {"path": "/etc/x/on-call-ca.crt", "content": "PEM", "live": True}
    assert destination_authorities([HOOK, MAIL], "/etc/x") == [expected]


def test_an_instance_is_scraped_under_its_own_name() -> None:
    assert scrape_target({"name": "chat", "port": 8001}, "vllm") == {"job": "vllm", "port": 8001, "instance": "chat"}


def test_good_entries_have_no_problems() -> None:
    assert problems({"alertmanager_receivers": [HOOK, MAIL], "prometheus_remote_write": [STORE], **RELAY}) == []
    assert problems({}) == []


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"alertmanager_receivers": [HOOK, HOOK]}, "the name on-call is there 2 times"),
        ({"alertmanager_receivers": [{**HOOK, "name": "On Call"}]}, "'On Call' cannot be a name"),
        ({"alertmanager_receivers": [{**HOOK, "name": "nobody"}]}, "'nobody' cannot be a name"),
        ({"alertmanager_receivers": [{**HOOK, "url": None}]}, "[on-call]: a webhook needs a url"),
        ({"alertmanager_receivers": [{**HOOK, "kind": "slack", "url": ""}]}, "[on-call]: a slack needs a url"),
        ({"alertmanager_receivers": [{"name": "ops", "kind": "mail"}], **RELAY}, "[ops]: a mail needs an address"),
        ({"alertmanager_receivers": [MAIL], **RELAY, "alertmanager_mail_from": ""}, "mails need alertmanager_mail_from"),
        (
            {"alertmanager_receivers": [MAIL], **RELAY, "alertmanager_mail_username": "u"},
            "alertmanager_mail_username needs alertmanager_mail_password",
        ),
        ({"prometheus_remote_write": [{**STORE, "token": "t"}]}, "[long]: it has a username and a token"),
        ({"prometheus_remote_write": [{**STORE, "password": None}]}, "[long]: username and password go together"),
    ],
)
def test_what_is_wrong_is_told_with_the_entry(variables: dict[str, Any], said: str) -> None:
    (found,) = problems(variables)
    assert said in found


@pytest.mark.parametrize("value", [None, "text", 7, ["x"], [{"kind": "webhook"}], [{"name": 3}]])
def test_wrong_types_are_left_to_the_argument_specification(value: Any) -> None:
    assert problems({"alertmanager_receivers": value, "prometheus_remote_write": value}) == []
