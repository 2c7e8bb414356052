"""A private authority and its certificates for servers and clients, made by the openssl command."""

import ssl
import subprocess
from pathlib import Path

HERE = "subjectAltName=IP:127.0.0.1,DNS:localhost"
ELSEWHERE = "subjectAltName=DNS:elsewhere.example"
_KEY = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]


class Certificates:
    """Two authorities and certificates that they signed, as NAME.pem and NAME.key in the folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for authority in ("ca", "stranger"):
            self._openssl("req", "-x509", *_KEY, "-days", "2", "-subj", f"/CN={authority}", *self._out(authority))
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
        self._openssl("req", *_KEY, "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", "request")
        signer = ["-CA", f"{authority}.pem", "-CAkey", f"{authority}.key", "-CAcreateserial"]
        files = ["-in", "request", "-extfile", "extension", "-out", f"{name}.pem"]
        self._openssl("x509", "-req", "-days", "2", *signer, *files)

    def _out(self, name: str) -> list[str]:
        return ["-keyout", f"{name}.key", "-out", f"{name}.pem"]

    def _openssl(self, *arguments: str) -> str:
        command = ["openssl", *arguments]
        finished = subprocess.run(command, cwd=self.folder, capture_output=True, text=True, check=False)
        assert finished.returncode == 0, finished.stderr
        return finished.stdout
