"""Real servers with certificates of a private authority: trusted ones, others, and no retries."""

import ssl
from typing import Any

import pytest
import urllib3

from tests.client.certificates import Certificates
from tests.client.conftest import Listen
from tests.client.listener import Listener, answering
from torchserve_client import Client, NoConnection, RetryPolicy, TLSFailed
from torchserve_client.transport import Request, Transport

# Retries at once and often, unless an error excludes a retry.
EAGER = RetryPolicy(attempts=5, first_pause_s=0.0)


@pytest.fixture(autouse=True)
def no_bundle(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def server(listen: Listen, certificates: Certificates) -> Listener:
    return listen(answering, certificates.server())


@pytest.fixture
def asking(listen: Listen, certificates: Certificates) -> Listener:
    """A server that requires a client certificate."""
    return listen(answering, certificates.server(asks_for_client=True))


def predict(url: str, **trust: Any) -> Any:
    with Client(url, timeout_s=20, retry=EAGER, **trust) as client:
        return client.predict("m", "a")


def refused(listener: Listener, words: str, **trust: Any) -> None:
    """Assert an error of TLS with these words at the first try."""
    before = listener.connections
    with pytest.raises(TLSFailed, match=words) as raised:
        predict(listener.url, **trust)
    assert raised.value.message.startswith(f"{listener.url}: TLS: ")
    assert raised.value.to_json()["type"] == "TLSFailed"
    assert listener.connections == before + 1


def test_private_authority_is_trusted_where_it_is_named(server: Listener, certificates: Certificates) -> None:
    assert predict(server.url, verify=certificates.pem("ca")) == 1
    assert predict(server.url, verify=str(certificates.pem("ca"))) == 1
    refused(server, "certificate verify failed: unable to get local issuer certificate")
    refused(server, "certificate verify failed", verify=certificates.pem("stranger"))


def test_certificate_of_another_host_is_refused(listen: Listen, certificates: Certificates) -> None:
    listener = listen(answering, certificates.server("elsewhere"))
    refused(listener, "IP address mismatch", verify=certificates.pem("ca"))


def test_client_certificate_is_shown(asking: Listener, certificates: Certificates) -> None:
    ca = certificates.pem("ca")
    assert predict(asking.url, verify=ca, cert=(certificates.pem("client"), str(certificates.key("client")))) == 1
    assert predict(asking.url, verify=ca, cert=certificates.pem("both")) == 1


def test_client_without_a_certificate_or_with_a_strangers_is_refused(
    asking: Listener, certificates: Certificates
) -> None:
    ca = certificates.pem("ca")
    refused(asking, "alert certificate required", verify=ca)
    strange = certificates.pem("strange-client"), certificates.key("strange-client")
    refused(asking, "alert unknown ca", verify=ca, cert=strange)


@pytest.mark.parametrize("error", [ssl.SSLZeroReturnError, ssl.SSLEOFError])
def test_end_of_tls_by_a_server_that_exits_is_a_lost_connection(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def end(*_: object, **__: object) -> None:
        raise error("ended")

    monkeypatch.setattr(urllib3.PoolManager, "urlopen", end)
    with pytest.raises(NoConnection):
        Transport().send(Request("POST", "https://127.0.0.1:9/predictions/m", b"x"), 5)
