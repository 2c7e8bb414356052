"""TLS of the two listeners, and the files that name the certificates.

gateway.yaml: tls -> secret-certificate.json, secret-authority.json -> PEM files, read anew as they are renamed over
"""

from deploy.gateway.envoy.resources import TYPE, Resource, typed, watched
from deploy.gateway.settings import Tls
from deploy.models import ROOT

CERTIFICATE, AUTHORITY = "certificate", "authority"


def secrets(tls: Tls) -> dict[str, Resource]:
    """Name the certificates, by the file that each is told in; Envoy takes one secret from one file."""
    # A relative path stands in the repository.
    certificate, key = ROOT / tls.certificate, ROOT / tls.key
    own = {"certificate_chain": {"filename": str(certificate)}, "private_key": {"filename": str(key)}}
    found = {CERTIFICATE: {"tls_certificate": {**own, "watched_directory": {"path": str(certificate.parent)}}}}
    if tls.client_ca is not None:
        authority = ROOT / tls.client_ca
        trusted = {"trusted_ca": {"filename": str(authority)}, "watched_directory": {"path": str(authority.parent)}}
        found[AUTHORITY] = {"validation_context": trusted}
    kind = TYPE + "envoy.extensions.transport_sockets.tls.v3.Secret"
    return {_file(name): {"@type": kind, "name": name, **secret} for name, secret in found.items()}


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
