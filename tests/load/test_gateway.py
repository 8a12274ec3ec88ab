"""Through a gateway that speaks TLS and wants a key."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.load.runs import BACKENDS, measure
from tests.load.server import serving
from vllm_node.lab import pki
from vllm_node.load.records import Record

NAME = "gateway.example"


class Gateway:
    """Speaks TLS in front of the server, and looks at the key as a gateway does."""

    def __init__(self, behind: int, certificate: Path, key: Path) -> None:
        self._behind = behind
        self._context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._context.load_cert_chain(certificate, key)
        self.loop = asyncio.new_event_loop()
        self.port = 0

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if b"Authorization: Bearer right\r\n" not in head:
            writer.write(b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            writer.close()
            return
        up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self._behind)
        up_writer.write(head)

        async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
            with contextlib.suppress(ConnectionError):
                while data := await source.read(65536):
                    sink.write(data)
                    await sink.drain()
                sink.close()

        await asyncio.gather(pump(reader, up_writer), pump(up_reader, writer))

    def __enter__(self) -> Gateway:
        server = self.loop.run_until_complete(asyncio.start_server(self._carry, "127.0.0.1", 0, ssl=self._context))
        self.port = server.sockets[0].getsockname()[1]
        threading.Thread(target=self.loop.run_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Gateway, Path]]:
    folder = tmp_path_factory.mktemp("gateway")
    pki.make(folder, NAME)
    (folder / "right").write_text("right\n")
    (folder / "wrong").write_text("wrong\n")
    with (
        serving(folder, "--ttft-us", "20000", "--itl-us", "5000") as server,
        Gateway(server.port, folder / "server.crt", folder / "server.key") as one,
    ):
        yield one, folder


def ask(gateway: tuple[Gateway, Path], out: Path, backend: str, **target: Any) -> tuple[list[Record], dict[str, Any]]:
    one, folder = gateway
    address = {"url": f"https://127.0.0.1:{one.port}", "model": "tiny", "server_name": NAME}
    files = {name: str(folder / value) for name, value in target.items()}
    requests = {"kind": "generated", "count": 3, "vocabulary": [1, 9], "prompt_tokens": 4, "output_tokens": 5}
    document = {**plan_of(address, files), "requests": requests, "backend": backend}
    result, records = measure(document, out)
    return records, result


def plan_of(address: dict[str, Any], files: dict[str, str]) -> dict[str, Any]:
    return {"target": {**address, **files}, "arrivals": {"kind": "closed", "clients": 1}}


@pytest.mark.parametrize("backend", BACKENDS)
def test_streams_through_tls(gateway: tuple[Gateway, Path], tmp_path: Path, backend: str) -> None:
    records, result = ask(gateway, tmp_path, backend, ca_file="ca.crt", api_key_file="right")
    assert [(one.kind, len(one.contents_us), one.output_tokens) for one in records] == [("ok", 5, 5)] * 3
    assert all(one.contents_us[0] >= 20_000 for one in records)
    assert result["generator"]["connections_made"] == 1
    assert "right\n" not in (tmp_path / "result.json").read_text()


@pytest.mark.parametrize("backend", BACKENDS)
def test_wrong_key(gateway: tuple[Gateway, Path], tmp_path: Path, backend: str) -> None:
    records, _ = ask(gateway, tmp_path, backend, ca_file="ca.crt", api_key_file="wrong")
    assert {(one.kind, one.group) for one in records} == {("http_401", "error")}


@pytest.mark.parametrize("backend", BACKENDS)
def test_unknown_authority(gateway: tuple[Gateway, Path], tmp_path: Path, backend: str) -> None:
    records, _ = ask(gateway, tmp_path, backend, api_key_file="right")
    assert {one.kind for one in records} == {"tls_error"}
    assert "certificate" in records[0].detail.lower()
