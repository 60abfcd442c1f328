"""A small HTTP server that answers its health check with one status and all else with another."""

import contextlib
import datetime
import http.server
import ipaddress
import ssl
import time
from collections.abc import Iterator
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tests.search_servers import in_thread

LOOPBACK = "127.0.0.1"


class _Server(http.server.ThreadingHTTPServer):
    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing: a client that refuses the certificate, or waits no longer, hangs up."""


@contextlib.contextmanager
def status_server(
    health: int,
    other: int,
    body: bytes = b"",
    delay_s: float = 0.0,
    certificate: Path | None = None,
) -> Iterator[str]:
    """Yield ``host:port``; paths that end with /health are its health check, which takes ``delay_s``."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            is_check = self.path.endswith("/health") and "//" not in self.path
            if is_check:
                time.sleep(delay_s)
            self.send_response(health if is_check else other)
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET

        def log_message(self, format: str, *args: object) -> None:
            pass

    running = _Server((LOOPBACK, 0), Handler)
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        running.socket = context.wrap_socket(running.socket, server_side=True)
    with in_thread(running):
        yield f"{LOOPBACK}:{running.server_port}"


def own_certificate(folder: Path) -> Path:
    """Write a certificate for loopback that no authority has signed, with its key, into one file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, LOOPBACK)])
    now = datetime.datetime.now(datetime.UTC)
    addresses = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(LOOPBACK))])
    certificate = (
        x509.CertificateBuilder(issuer_name=name, subject_name=name, public_key=key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(addresses, critical=False)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    file = folder / "own.pem"
    file.write_bytes(private + certificate.public_bytes(serialization.Encoding.PEM))
    return file
