"""Whether a site's certificate will do: for its key, its names and the time that is left."""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cryptography import x509
from cryptography.hazmat.primitives import serialization

WARN_DAYS = 30


@dataclass(frozen=True)
class Complaint:
    """What is wrong with a certificate; `stops` when nobody could use it."""

    text: str
    stops: bool = True


def complaints(
    certificate: str, key: str | None, names: Sequence[str], now: datetime.datetime
) -> Iterator[Complaint]:
    """What speaks against the first certificate of a PEM; `key` is None where it is not to be seen here."""
    try:
        leaf = x509.load_pem_x509_certificates(certificate.encode())[0]
    except (ValueError, IndexError) as error:
        yield Complaint(f"gateway_tls_certificate is no certificate in PEM: {error}")
        return
    if now >= leaf.not_valid_after_utc:
        yield Complaint(f"the certificate has expired on {leaf.not_valid_after_utc:%Y-%m-%d}")
    elif now < leaf.not_valid_before_utc:
        yield Complaint(f"the certificate is not valid before {leaf.not_valid_before_utc:%Y-%m-%d %H:%M} UTC")
    elif leaf.not_valid_after_utc - now < datetime.timedelta(days=WARN_DAYS):
        yield Complaint(f"the certificate expires on {leaf.not_valid_after_utc:%Y-%m-%d}", stops=False)
    missing = [name for name in names if not covers(leaf, name)]
    if missing:
        known = ", ".join(_names(leaf)) or "no name"
        yield Complaint(f"the certificate is good for {known}, not for {', '.join(missing)}")
    if key is not None:
        yield from _key(leaf, key)


def _key(leaf: x509.Certificate, key: str) -> Iterator[Complaint]:
    try:
        private = serialization.load_pem_private_key(key.encode(), None)
    except TypeError:
        yield Complaint("gateway_tls_key has a password of its own; give it without one, in the vault")
        return
    except ValueError:
        # The words of the library may quote from it.
        yield Complaint("gateway_tls_key is no key in PEM")
        return
    if _public(private.public_key()) != _public(leaf.public_key()):
        yield Complaint("gateway_tls_key is not the key of the first certificate in gateway_tls_certificate")


def _public(key: object) -> bytes:
    found: bytes = key.public_bytes(  # type: ignore[attr-defined]
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return found


def _names(leaf: x509.Certificate) -> list[str]:
    """Names and addresses of a certificate; its subject has not counted for clients for a long time."""
    try:
        named = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    return [str(one.value) for one in named if isinstance(one, x509.DNSName | x509.IPAddress)]


def covers(leaf: x509.Certificate, name: str) -> bool:
    """Whether a certificate is good for a name or an address; a star stands for one label."""
    try:
        return str(ipaddress.ip_address(name.strip("[]"))) in _names(leaf)
    except ValueError:
        lower = name.lower()
        return any(one in (lower, f"*.{lower.partition('.')[2]}") for one in map(str.lower, _names(leaf)))
