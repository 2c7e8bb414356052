"""Says whom a client trusts over TLS and how it shows who it is, as one SSLContext.

    verify, cert, REQUESTS_CA_BUNDLE -> context -> sockets that are known before they shake hands

The context is the only place that decides: what `requests` would load beside it is not asked for.
"""

import errno
import os
import ssl
from pathlib import Path
from typing import Any

from requests.utils import DEFAULT_CA_BUNDLE_PATH

from torchserve_client.errors import TLSFailed
from torchserve_client.sockets import Deadline, Sockets

# Where to find certificates of authorities, for whoever sets no `verify`: the names that requests and curl read.
BUNDLES = ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")

Name = str | os.PathLike[str]
# Whether certificates are checked, or the file or folder of those that are trusted.
Verify = bool | Name
# One file with certificate and key, or one of each.
Cert = Name | tuple[Name, Name]


class TLSSocket(Deadline, ssl.SSLSocket):
    """A socket with TLS, as http.client uses it."""

    def read(self, *arguments: Any, **keywords: Any) -> Any:
        """Receive within what is left."""
        self._arm()
        return super().read(*arguments, **keywords)

    def send(self, *arguments: Any, **keywords: Any) -> int:
        """Send within what is left."""
        self._arm()
        try:
            return super().send(*arguments, **keywords)
        except ssl.SSLEOFError as error:
            # What urllib3 takes for an occasion to read what the server said before it went: with TLS 1.3 a server
            # looks at the client's certificate when the client is writing already.
            raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE)) from error

    def do_handshake(self, block: bool = False) -> None:
        """Shake hands within what is left."""
        self._arm()
        super().do_handshake(block)


class Context(ssl.SSLContext):
    """Makes sockets that can be cut while they shake hands."""

    sslsocket_class = TLSSocket
    sockets: Sockets

    def wrap_socket(self, sock: Any, *arguments: Any, **keywords: Any) -> ssl.SSLSocket:
        """Put TLS on a socket that is connected, and shake hands."""
        keywords["do_handshake_on_connect"] = False
        wrapped = super().wrap_socket(sock, *arguments, **keywords)
        try:
            # It takes the place of the one that it was given, and is another.
            self.sockets.add(wrapped)
            wrapped.do_handshake()
        except BaseException:
            wrapped.close()
            raise
        return wrapped


def context(verify: Verify, cert: Cert | None, sockets: Sockets) -> Context:
    """Make the context of a transport.

    Args:
        verify: True checks the server's certificate against the bundle that REQUESTS_CA_BUNDLE or CURL_CA_BUNDLE
            names, or else against certifi's; a path, against that file or folder alone; False checks nothing.
        cert: the client's certificate; None shows none. A key that is encrypted cannot be used.
        sockets: those of the transport.

    Raises:
        TLSFailed: a file cannot be read, or holds something else.
    """
    made = Context(ssl.PROTOCOL_TLS_CLIENT)
    made.sockets = sockets
    # The name of a host stands in the certificate's subjectAltName, and nowhere else (RFC 9110, 4.3.4).
    made.hostname_checks_common_name = False
    if verify is False:
        made.check_hostname = False
        made.verify_mode = ssl.CERT_NONE
    else:
        _trust(made, verify)
    if cert is not None:
        _show(made, cert)
    return made


def _trust(made: ssl.SSLContext, verify: Verify) -> None:
    name = next((name for name in BUNDLES if os.environ.get(name)), "") if verify is True else ""
    bundle = Path((os.environ[name] if name else DEFAULT_CA_BUNDLE_PATH) if isinstance(verify, bool) else verify)
    try:
        if bundle.is_dir():
            made.load_verify_locations(capath=bundle)
        else:
            made.load_verify_locations(bundle)
    except OSError as error:
        raise TLSFailed(f"{name or 'verify'}: {bundle}: {reason(error)}") from error


def _show(made: ssl.SSLContext, cert: Cert) -> None:
    certificate, key = cert if isinstance(cert, tuple) else (cert, cert)
    for path in (certificate, key):
        # OpenSSL would not say which of the two is missing.
        if not Path(path).is_file():
            raise TLSFailed(f"cert: {path}: no such file")
    try:
        # Without a password OpenSSL would ask for one on the terminal.
        made.load_cert_chain(certificate, key, password="")
    except OSError as error:
        raise TLSFailed(f"cert: {certificate}, {key}: {reason(error)}") from error


def reason(error: OSError) -> str:
    """Return what an error of the system or of OpenSSL says, without its place in a source file."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"certificate verify failed: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return (error.reason or "no certificate in it").lower().replace("_", " ")
    return error.strerror or str(error)
