"""A throw-away certificate authority for tests over https."""

from __future__ import annotations

import datetime as dt
import ipaddress
import ssl
import tempfile
from pathlib import Path

NAMES = ("localhost", "api.openai.com", "api.anthropic.com", "generativelanguage.googleapis.com")
USAGES = (
    *("digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement"),
    *("key_cert_sign", "crl_sign", "encipher_only", "decipher_only"),
)
"""All key usages of X.509; Python 3.13 verifies strictly and wants them stated for a CA."""


def server_context(names: tuple[str, ...] = NAMES) -> tuple[ssl.SSLContext, Path]:
    """Make a CA and a certificate for 127.0.0.1 and `names`; returns the server's context and the CA's PEM file."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    now = dt.datetime.now(dt.UTC)
    ca_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    ca_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "llmproxy test CA")])

    def builder(subject: x509.Name, public: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder(issuer_name=ca_name, subject_name=subject, public_key=public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(days=1))
            .not_valid_after(now + dt.timedelta(days=2))
        )

    identifier = x509.SubjectKeyIdentifier.from_public_key(ca_key.public_key())
    ca = builder(ca_name, ca_key.public_key()).add_extension(
        x509.BasicConstraints(ca=True, path_length=None), critical=True
    )
    signs = dict.fromkeys(USAGES, False) | {"key_cert_sign": True, "crl_sign": True}
    ca = ca.add_extension(x509.KeyUsage(**signs), critical=True).add_extension(identifier, critical=False)
    alternatives: list[x509.GeneralName] = [x509.DNSName(name) for name in names]
    alternatives.append(x509.IPAddress(ipaddress.ip_address("127.0.0.1")))
    leaf_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0])])
    leaf = builder(leaf_name, key.public_key()).add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
    issuer = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier)
    leaf = leaf.add_extension(issuer, critical=False)

    folder = Path(tempfile.mkdtemp(prefix="provider-ca-"))
    pem = serialization.Encoding.PEM
    (folder / "ca.pem").write_bytes(ca.sign(ca_key, hashes.SHA256()).public_bytes(pem))
    (folder / "leaf.pem").write_bytes(
        leaf.sign(ca_key, hashes.SHA256()).public_bytes(pem)
        + key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "leaf.pem")
    return context, folder / "ca.pem"
