"""TLS of the two listeners, and the files that name the certificates.

gateway.yaml: tls -> secret-certificate.json, secret-authority.json -> PEM files, read anew as they are renamed over
"""

from pathlib import Path

from deploy.gateway.envoy.resources import TYPE, Resource, typed, watched
from deploy.gateway.settings import Tls
from deploy.models import ROOT

SECRET = TYPE + "envoy.extensions.transport_sockets.tls.v3.Secret"
CERTIFICATE, AUTHORITY = "certificate", "authority"


def path_of(name: str) -> Path:
    """Find a file of the settings; a relative one stands in the repository."""
    return ROOT / name


def secrets(tls: Tls) -> dict[str, Resource]:
    """Name the certificates, by the file that each is told in; Envoy takes one secret from one file."""
    certificate, key = path_of(tls.certificate), path_of(tls.key)
    found: dict[str, Resource] = {
        _file(CERTIFICATE): {
            "@type": SECRET,
            "name": CERTIFICATE,
            "tls_certificate": {
                "certificate_chain": {"filename": str(certificate)},
                "private_key": {"filename": str(key)},
                "watched_directory": {"path": str(certificate.parent)},
            },
        }
    }
    if tls.client_ca is not None:
        authority = path_of(tls.client_ca)
        found[_file(AUTHORITY)] = {
            "@type": SECRET,
            "name": AUTHORITY,
            "validation_context": {
                "trusted_ca": {"filename": str(authority)},
                "watched_directory": {"path": str(authority.parent)},
            },
        }
    return found


def transport(tls: Tls, protocols: list[str]) -> Resource:
    """Make the transport socket of a listener, TLS 1.2 or newer, that offers these protocols (ALPN)."""
    common: Resource = {
        "tls_params": {"tls_minimum_protocol_version": "TLSv1_2"},
        "alpn_protocols": protocols,
        "tls_certificate_sds_secret_configs": [_named(CERTIFICATE)],
    }
    if tls.client_ca is not None:
        common["validation_context_sds_secret_config"] = _named(AUTHORITY)
    return typed(
        "envoy.transport_sockets.tls",
        "envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext",
        common_tls_context=common,
        require_client_certificate=tls.client_ca is not None,
    )


def _file(name: str) -> str:
    return f"secret-{name}.json"


def _named(name: str) -> Resource:
    return {"name": name, "sds_config": watched(_file(name))}
