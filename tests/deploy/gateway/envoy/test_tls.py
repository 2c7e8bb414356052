"""TLS in front of clients: versions, protocols, certificates that are replaced, clients that must have one."""

import http.client
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from deploy.gateway.envoy import files
from deploy.gateway.envoy.process import Envoy
from deploy.gateway.settings import Ports, Settings, Tls
from deploy.gateway.state import Fleet
from tests.client.certificates import Certificates
from tests.deploy.gateway.envoy.harness import free_port, wait
from tests.deploy.gateway.envoy.stand_ins import control


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    made = Certificates(tmp_path_factory.mktemp("certificates"))
    live = made.folder / "live"
    live.mkdir()
    replace(made, "server")
    return made


def replace(certificates: Certificates, name: str) -> None:
    """Rename a certificate and its key over those that are served."""
    for path, kind in ((certificates.key(name), "key.pem"), (certificates.pem(name), "certificate.pem")):
        new = certificates.folder / "live" / f"{kind}.new"
        new.write_bytes(path.read_bytes())
        new.replace(certificates.folder / "live" / kind)


@pytest.fixture(params=[False, True], ids=["any client", "clients with a certificate"], scope="module")
def ports(
    request: pytest.FixtureRequest, certificates: Certificates, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Ports]:
    live = certificates.folder / "live"
    authority = str(certificates.pem("ca")) if request.param else None
    tls = Tls(certificate=str(live / "certificate.pem"), key=str(live / "key.pem"), client_ca=authority)
    stand_in = control()
    ports = Ports(http=free_port(), grpc=free_port(), control=stand_in.port)
    run: Path = tmp_path_factory.mktemp("run")
    settings = Settings(ports=ports, tls=tls)
    files.write(settings, Fleet(), run)
    envoy = Envoy(run)
    envoy.start(settings)
    yield ports
    envoy.stop(10)
    stand_in.close()


def context(certificates: Certificates, *, client: str | None = "client", protocol: str = "http/1.1") -> ssl.SSLContext:
    made = ssl.create_default_context(cafile=str(certificates.pem("ca")))
    made.set_alpn_protocols([protocol])
    if client is not None:
        made.load_cert_chain(certificates.pem(client), certificates.key(client))
    return made


def status(ports: Ports, trusted: ssl.SSLContext) -> int:
    connection = http.client.HTTPSConnection("127.0.0.1", ports.http, context=trusted, timeout=30)
    try:
        connection.request("GET", "/v2/health/live")
        return connection.getresponse().status
    finally:
        connection.close()


def test_tls_is_spoken_and_plain_http_is_not(ports: Ports, certificates: Certificates) -> None:
    assert status(ports, context(certificates)) == 200
    plain = http.client.HTTPConnection("127.0.0.1", ports.http, timeout=30)
    with pytest.raises((http.client.HTTPException, OSError)):
        plain.request("GET", "/v2/health/live")
        plain.getresponse()
    plain.close()


@pytest.mark.parametrize("client", [None, "strange-client"])
def test_a_client_without_a_certificate_that_is_asked_for_gets_nothing(
    ports: Ports, certificates: Certificates, client: str | None, request: pytest.FixtureRequest
) -> None:
    trusted = context(certificates, client=client)
    if "any client" in request.node.callspec.id:
        assert status(ports, trusted) == 200
    else:
        with pytest.raises((ssl.SSLError, OSError, http.client.HTTPException)):
            status(ports, trusted)


def test_http_2_is_chosen_by_who_offers_it(ports: Ports, certificates: Certificates) -> None:
    for protocol in ("h2", "http/1.1"):
        with (
            socket.create_connection(("127.0.0.1", ports.http), timeout=30) as raw,
            context(certificates, protocol=protocol).wrap_socket(raw, server_hostname="127.0.0.1") as wrapped,
        ):
            assert (wrapped.selected_alpn_protocol(), wrapped.version()) == (protocol, "TLSv1.3")


def test_versions_before_1_2_are_refused(ports: Ports, certificates: Certificates) -> None:
    old = context(certificates)
    old.minimum_version = ssl.TLSVersion.TLSv1_2
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    assert status(ports, old) == 200
    old.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.warns(DeprecationWarning):
        old.minimum_version = ssl.TLSVersion.TLSv1_1
    with pytest.warns(DeprecationWarning):
        old.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises((ssl.SSLError, OSError)):
        status(ports, old)


def test_grpc_is_over_tls_too(ports: Ports, certificates: Certificates) -> None:
    credentials = grpc.ssl_channel_credentials(
        certificates.pem("ca").read_bytes(),
        certificates.key("client").read_bytes(),
        certificates.pem("client").read_bytes(),
    )
    with grpc.secure_channel(f"127.0.0.1:{ports.grpc}", credentials) as channel:
        answer = channel.unary_unary("/inference.GRPCInferenceService/ServerLive")(b"\x08\x01", timeout=30)
    assert answer == b"\x08\x01"


def test_a_certificate_that_is_renamed_over_is_served_from_then_on(ports: Ports, certificates: Certificates) -> None:
    """`elsewhere` is of another host: a client that checks names refuses it."""
    trusted = context(certificates)

    def is_trusted() -> bool:
        try:
            return status(ports, trusted) == 200
        except ssl.SSLCertVerificationError:
            return False

    assert is_trusted()
    replace(certificates, "elsewhere")
    wait(lambda: not is_trusted())
    replace(certificates, "server")
    wait(is_trusted)
