"""The TLS context of a transport: which certificates a client trusts, and the one it shows."""

import os
import ssl
from pathlib import Path

import certifi
from urllib3.util.ssl_ import create_urllib3_context

from torchserve_client.errors import TLSFailed

# Environment variables that name the certificates to trust where `verify` does not: those of requests and of curl.
BUNDLES = ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")

Name = str | os.PathLike[str]
# Whether certificates are checked, or the file or folder of those that are trusted.
Verify = bool | Name
# One file with certificate and key, or one of each.
Cert = Name | tuple[Name, Name]


def context(verify: Verify, cert: Cert | None) -> ssl.SSLContext:
    """Make a TLS context.

    Args:
        verify, cert: those of `PooledTransport`.

    Raises:
        TLSFailed: a file cannot be read, or holds something else.
    """
    made = create_urllib3_context()
    # The name of a host stands in the certificate's subjectAltName alone (RFC 9110, 4.3.4).
    made.hostname_checks_common_name = False
    if verify is False:
        made.check_hostname = False
        made.verify_mode = ssl.CERT_NONE
    else:
        name = next((name for name in BUNDLES if os.environ.get(name)), "") if verify is True else ""
        bundle = Path((os.environ[name] if name else certifi.where()) if isinstance(verify, bool) else verify)
        try:
            made.load_verify_locations(*([None, bundle] if bundle.is_dir() else [bundle]))
        except OSError as error:
            raise TLSFailed(f"{name or 'verify'}: {bundle}: {reason(error)}") from error
    if cert is not None:
        certificate, key = cert if isinstance(cert, tuple) else (cert, cert)
        try:
            # Without a password OpenSSL would ask for one on the terminal.
            made.load_cert_chain(certificate, key, password="")
        except OSError as error:
            raise TLSFailed(f"cert: {certificate}, {key}: {reason(error)}") from error
    return made


def reason(error: OSError) -> str:
    """Return the words of an error of the system or of OpenSSL, without its place in a source file."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"certificate verify failed: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return (error.reason or "no certificate in it").lower().replace("_", " ")
    return error.strerror or str(error)
