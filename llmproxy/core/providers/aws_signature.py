"""AWS signatures (SigV4): a request that is signed for the proxy's own address is of no use to AWS.

Whatever signs, signs the Host header too, and by base URL that is ours. AWS would answer 403; recorded, that would stand in the place
of an answer. So such a request is refused before it is sent, with what to do. To sign anew is not for us: it takes the user's secret
key, and the whole body before the first byte can go out. In replay a signature is ignored: it is a credential.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from llmproxy.core.traffic.interaction import Headers, header
from llmproxy.errors import RefusedError

ALGORITHM = "AWS4-HMAC-"
AWS = (".amazonaws.com", ".amazonaws.com.cn", ".api.aws")
"""How hosts end that check signatures; a gateway or a stand-in that --upstream names may well take what it gets."""


class SignedForUs(RefusedError):
    """AWS would refuse this signature; 400, because boto asks again after most other statuses."""

    code = "llmproxy_signed_for_proxy"
    status = 400


def check_signature(headers: Headers, upstream: str) -> None:
    """Refuse to send a request whose signature its upstream cannot accept.

    Raises:
        SignedForUs: it is signed for another host, and goes to AWS.

    """
    wanted = urlsplit(upstream)
    host, signed_for = wanted.hostname or "", (header(headers, "host") or "").strip().lower()
    if not host.endswith(AWS) or not (header(headers, "authorization") or "").startswith(ALGORITHM):
        return
    if signed_for in (host, wanted.netloc, f"{host}:443"):
        return
    msg = (
        f"llmproxy: this request is signed (SigV4) for {signed_for[:100]}, so {host} would refuse it; it was not sent."
    )
    hint = (
        "Record by interception, where the client signs for AWS: llmproxy run --intercept -- COMMAND\n"
        "Or with a Bedrock API key (AWS_BEARER_TOKEN_BEDROCK) over https at this port. Replay by base URL takes any signature."
    )
    raise SignedForUs(msg, hint=hint)
