"""A private authority and its certificates for servers and clients, made by the openssl command."""

import ssl
import subprocess
from pathlib import Path

HERE = "subjectAltName=IP:127.0.0.1,DNS:localhost"
ELSEWHERE = "subjectAltName=DNS:elsewhere.example"
_KEY = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes"


class Certificates:
    """Two authorities and certificates that they signed, as NAME.pem and NAME.key in the folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for authority in ("ca", "stranger"):
            out = f"-keyout {authority}.key -out {authority}.pem"
            self._openssl(f"req -x509 {_KEY} -days 2 -subj /CN={authority} {out}")
        self._sign("server", "ca", HERE)
        self._sign("elsewhere", "ca", ELSEWHERE)
        self._sign("client", "ca", "extendedKeyUsage=clientAuth")
        self._sign("strange-client", "stranger", "extendedKeyUsage=clientAuth")
        both = self.pem("client").read_text() + self.key("client").read_text()
        (folder / "both.pem").write_text(both)

    def pem(self, name: str) -> Path:
        return self.folder / f"{name}.pem"

    def key(self, name: str) -> Path:
        return self.folder / f"{name}.key"

    def server(self, name: str = "server", *, asks_for_client: bool = False) -> ssl.SSLContext:
        """Return the context of a server with this certificate, optionally one that requires a client certificate."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.pem(name), self.key(name))
        if asks_for_client:
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(self.pem("ca"))
        return context

    def _sign(self, name: str, authority: str, extension: str) -> None:
        (self.folder / "extension").write_text(extension)
        self._openssl(f"req {_KEY} -subj /CN={name} -keyout {name}.key -out request")
        signer = f"-CA {authority}.pem -CAkey {authority}.key -CAcreateserial"
        self._openssl(f"x509 -req -days 2 {signer} -in request -extfile extension -out {name}.pem")

    def _openssl(self, arguments: str) -> None:
        subprocess.run(["openssl", *arguments.split()], cwd=self.folder, capture_output=True, check=True)
