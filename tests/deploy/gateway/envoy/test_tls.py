"""TLS in front of clients: versions, protocols, certificates that are replaced, clients that must have one."""

import http.client
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
import requests

from deploy.gateway.settings import GatewaySettings, Tls
from tests.client.certificates import Certificates
from tests.deploy.gateway.envoy.harness import Gateway, wait

LIVE = "/v2/health/live"


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    made = Certificates(tmp_path_factory.mktemp("certificates"))
    (made.folder / "live").mkdir()
    replace(made, "server")
    return made


def replace(certificates: Certificates, name: str) -> None:
    for path, kind in ((certificates.key(name), "key.pem"), (certificates.pem(name), "certificate.pem")):
        new = certificates.folder / "live" / f"{kind}.new"
        new.write_bytes(path.read_bytes())
        new.replace(certificates.folder / "live" / kind)


def settings(certificates: Certificates, client_ca: str | None = None) -> GatewaySettings:
    live = certificates.folder / "live"
    return GatewaySettings(
        tls=Tls(certificate=str(live / "certificate.pem"), key=str(live / "key.pem"), client_ca=client_ca)
    )


@pytest.fixture(scope="module")
def secure(certificates: Certificates, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with Gateway(tmp_path_factory.mktemp("secure"), settings(certificates)) as made:
        yield made


def context(certificates: Certificates, *, client: str | None = None, protocol: str = "http/1.1") -> ssl.SSLContext:
    made = ssl.create_default_context(cafile=str(certificates.pem("ca")))
    made.set_alpn_protocols([protocol])
    if client is not None:
        made.load_cert_chain(certificates.pem(client), certificates.key(client))
    return made


def status(gateway: Gateway, trusted: ssl.SSLContext) -> int:
    connection = http.client.HTTPSConnection("127.0.0.1", gateway.settings.ports.http, context=trusted, timeout=30)
    try:
        connection.request("GET", LIVE)
        return connection.getresponse().status
    finally:
        connection.close()


def by_grpc(gateway: Gateway, certificates: Certificates, client: str | None = None) -> bytes:
    chain = (certificates.key(client).read_bytes(), certificates.pem(client).read_bytes()) if client else (None, None)
    credentials = grpc.ssl_channel_credentials(certificates.pem("ca").read_bytes(), *chain)
    with grpc.secure_channel(f"127.0.0.1:{gateway.settings.ports.grpc}", credentials) as channel:
        answer: bytes = channel.unary_unary("/inference.GRPCInferenceService/ServerLive")(b"\x08\x01", timeout=30)
        return answer


def test_tls_is_spoken_and_nothing_else(secure: Gateway, certificates: Certificates) -> None:
    for protocol in ("h2", "http/1.1"):
        with (
            socket.create_connection(("127.0.0.1", secure.settings.ports.http), timeout=30) as raw,
            context(certificates, protocol=protocol).wrap_socket(raw, server_hostname="127.0.0.1") as wrapped,
        ):
            assert (wrapped.selected_alpn_protocol(), wrapped.version()) == (protocol, "TLSv1.3")
    assert by_grpc(secure, certificates) == b"\x08\x01"
    with pytest.raises(requests.ConnectionError):
        secure.ask("GET", LIVE)


def test_client_without_a_certificate_that_is_asked_for_gets_nothing(
    certificates: Certificates, tmp_path: Path
) -> None:
    with Gateway(tmp_path, settings(certificates, str(certificates.pem("ca")))) as gateway:
        assert status(gateway, context(certificates, client="client")) == 200
        assert by_grpc(gateway, certificates, "client") == b"\x08\x01"
        for client in (None, "strange-client"):
            with pytest.raises((ssl.SSLError, OSError, http.client.HTTPException)):
                status(gateway, context(certificates, client=client))
        with pytest.raises(grpc.RpcError):
            by_grpc(gateway, certificates)


def test_certificate_that_is_renamed_over_is_served_from_then_on(secure: Gateway, certificates: Certificates) -> None:
    """`elsewhere` is of another host: a client that checks names refuses it."""

    def is_trusted() -> bool:
        try:
            return status(secure, context(certificates)) == 200
        except ssl.SSLCertVerificationError:
            return False

    assert is_trusted()
    replace(certificates, "elsewhere")
    wait(lambda: not is_trusted())
    replace(certificates, "server")
    wait(is_trusted)
