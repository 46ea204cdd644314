"""What is a secret: by its shape, by what stands around it, by its name. Tables only.

*Shape*: keys that tell by themselves what they are, a prefix that nothing else has, an alphabet, a length.

    "dop_v1_<hex64>"     literal text, then 64 characters of the alphabet ``hex``
    "gsk_<alnum20+>"     20 or more: as far as the alphabet goes

Prefixes, alphabets and lengths are facts of the services; most were read off the default configuration of gitleaks
(github.com/gitleaks/gitleaks, config/gitleaks.toml as of mid-2025, commit 009e025), less its generic rule, whose
finds are mostly no secrets; the rest off the services' own pages (2026). A kind costs nothing until its prefix is
met: expressions are compiled then.
*Place*: ``Bearer``, a URL's password, the name of a service before a value. Each has literals (`needles`) of which
one must occur before the expression is tried: most bodies hold none and are never scanned. Sources: the services'
documentation as of 2026, GitHub's secret scanning patterns, RFC 6749, RFC 7468, RFC 7519.
*Name*: header fields, members of queries, forms and JSON. What stands under such a name is a credential, whatever it
looks like, or (under names that other things have as well) if it looks like one.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache

from llmproxy.core.secrets.entropy import is_example, is_password, is_random
from llmproxy.late import late

ALPHABETS = {
    "hex": "0-9a-f",
    "hexes": "0-9a-fA-F",
    "digit": "0-9",
    "low": "a-z0-9",
    "up": "A-Z0-9",
    "alnum": "A-Za-z0-9",
    "word": r"A-Za-z0-9_\-",
    "words": r"A-Za-z0-9_\-=",
    "dots": r"A-Za-z0-9_\-=.",
    "base64": "A-Za-z0-9+/",
    "base32": "A-Z2-7",
    "bech32": "QPZRY9X8GF2TVDW0S3JN54KHCE6MUA7L",
    "wide": r"A-Za-z0-9_\-+/=.~",
}
"""What may stand in angle brackets, as the inside of a character class."""

_ONE_CASE = {"hex", "hexes", "digit", "low", "up", "base32", "bech32"}
_PIECE = late(rf"<({'|'.join(sorted(ALPHABETS, key=len, reverse=True))})(\d+)(\+?)>")


def any_of(words: Iterable[str]) -> str:
    """Return an expression that matches any of these words, the longest.

    One step a character, however many there are.
    """
    tree: dict[str, list[str]] = defaultdict(list)
    for word in words:
        if word:
            tree[word[0]].append(word[1:])
    branches = [re.escape(char) + any_of(rest) for char, rest in tree.items()]
    if not branches:
        return ""
    return f"(?:{'|'.join(branches)})" + ("" if all(words) else "?")


@dataclass(frozen=True, slots=True)
class SecretKind:
    """One way in which keys of a service are written."""

    name: str
    template: str
    wordy: bool = False
    """Words of a text look like it (``sk-learn-...``): only a dozen letters and digits in a row, a digit among
    them, are a key."""
    entropy: float = 3.0
    """Bits a character that the part without the literal text must have: repeated letters are examples."""

    @property
    def needle(self) -> str:
        """The literal text that must occur before anything else is tried: the longest with a known place in the key."""
        fixed = re.split(r"<[^>]*\+>", self.template)[0]
        return max(re.split(r"<[^>]*>", fixed), key=len)

    @property
    def mixed(self) -> bool:
        """Whether words could be written in its alphabet."""
        return not {piece[1] for piece in _PIECE.finditer(self.template)} <= _ONE_CASE

    @property
    def lead(self) -> int:
        """How many characters of the key stand before the needle."""
        before = self.template.partition(self.needle)[0]
        return literal_length(before) + sum(int(piece[2]) for piece in _PIECE.finditer(before))


@cache
def expression(template: str) -> re.Pattern[str]:
    """Return what matches a template where it begins, as far as its open end goes."""
    out, at = [], 0
    for piece in _PIECE.finditer(template):
        out.append(re.escape(template[at : piece.start()]))
        out.append(f"[{ALPHABETS[piece[1]]}]{{{piece[2]}{',' if piece[3] else ''}}}")
        at = piece.end()
    out.append(re.escape(template[at:]))
    return re.compile("".join(out) + ("" if template.endswith("+>") else r"(?![A-Za-z0-9])"))


def literal_length(template: str) -> int:
    """Return how many characters of a template are literal."""
    return len(_PIECE.sub("", template))


def _rows() -> tuple[SecretKind, ...]:
    rows = [SecretKind(name, template) for name, templates in _TABLE.items() for template in templates.split()]
    rows += [
        SecretKind(name, template, wordy=True) for name, templates in _WORDY.items() for template in templates.split()
    ]
    rows += [
        SecretKind(name, template, entropy=_PLAIN)
        for name, templates in _COARSE.items()
        for template in templates.split()
    ]
    return tuple(rows)


_PLAIN = 2.3
"""Of short hexadecimal ones: 16 digits of 16 have 3.2 bits on average, seldom less than 2.5."""

_WORDY = {
    "openai": "sk-<word20+>",
    "xai": "xai-<alnum20+>",
    "cerebras": "csk-<alnum30+>",
    "tavily": "tvly-<word20+>",
    "voyage": "pa-<word40+>",
    "openai session": "sess-<alnum32+>",
    "firecrawl": "fc-<hex32>",
}
_COARSE = {
    "aws": "AKIA<up16> ASIA<up16> ABIA<up16> ACCA<up16> A3T<up17>",
    "settlemint": "sm_aat_<alnum16> sm_pat_<alnum16> sm_sat_<alnum16>",
    "flutterwave": "FLWSECK_TEST-<low12+> FLWSECK-<low32+> FLWPUBK_TEST-<low32+>",
    "new relic": "NRAK-<up27> NRII-<word32> NRJS-<hex19>",
    "databricks": "dapi<hex32>",
    "slack, old": "xoxa-<word12+> xoxr-<word12+>",
    "gitlab session": "_gitlab_session=<low32>",
}
_TABLE = {
    # models, and what agents use beside them
    "openai project": "sk-proj-<word16+> sk-svcacct-<word16+> sk-admin-<word16+>",
    "openai ephemeral": "ek_<alnum20+>",
    "anthropic": "sk-ant-<word16+>",
    "openrouter": "sk-or-<word16+>",
    "langfuse": "sk-lf-<word16+>",
    "bedrock": "ABSK<base64100+> bedrock-api-key-<base6440+>",
    "google": "AIza<word35+> AQ.Ab<word30+>",
    "groq": "gsk_<alnum20+>",
    "huggingface": "hf_<alnum30+> api_org_<alnum30+>",
    "replicate": "r8_<alnum30+>",
    "perplexity": "pplx-<alnum30+>",
    "nvidia": "nvapi-<word40+>",
    "fireworks": "fw_<alnum22+>",
    "together": "tgp_v1_<word40+>",
    "jina": "jina_<alnum40+>",
    "pinecone": "pcsk_<word40+>",
    "langsmith": "lsv2_pt_<hex32>_<hex10> lsv2_sk_<hex32>_<hex10>",
    "e2b": "e2b_<hex40>",
    "elevenlabs": "sk_<hex48>",
    "cartesia": "sk_car_<word20+>",
    "apify": "apify_api_<alnum36>",
    # clouds
    "google oauth": "ya29.<word20+> 1//0<word40+> GOCSPX-<word28>",
    "alibaba": "LTAI<alnum20>",
    "azure": "<wide3><digit1>Q~<wide31+> AccountKey=<base6486> SharedAccessKey=<base6443>",
    "cloudflare": "v1.0-<hex24>-<hex146>",
    "digitalocean": "dop_v1_<hex64> doo_v1_<hex64> dor_v1_<hex64>",
    "fly": "fo1_<word43> fm1a_<base64100+> fm1r_<base64100+> fm2_<base64100+>",
    "heroku": "HRKU-AA<word58>",
    "netlify": "nfp_<alnum36+>",
    "scalingo": "tk-us-<word48>",
    "supabase": "sbp_<hex40> sb_secret_<word22+>",
    "tailscale": "tskey-auth-<word20+> tskey-api-<word20+> tskey-client-<word20+>",
    "terraform": "<alnum14>.atlasv1.<words60+>",
    "openshift": "sha256~<word43>",
    "yandex": "AQVN<word35+> t1.<word30+>.<word86> YCAJE<word20+> YCP<word37>",
    "clickhouse": "4b1d<alnum38>",
    "planetscale": "pscale_tkn_<dots32+> pscale_oauth_<dots32+> pscale_pw_<dots32+>",
    "pulumi": "pul-<hex40>",
    "vault": "hvs.<word90+> hvb.<word138+> hvs.CAES<word20+> hvb.AAAA<word20+>",
    "vault, old": "s.<alnum24>",
    # code, packages, tests
    "github": "ghp_<alnum30+> gho_<alnum30+> ghu_<alnum30+> ghs_<alnum30+> ghr_<alnum30+> github_pat_<word40+>",
    "gitlab": "glpat-<dots20+> glptt-<hex40> gldt-<word20+> glrt-<dots20+> glcbt-<word20+> glft-<word20+> "
    "glimt-<word20+> "    "glagent-<word40+> gloas-<word40+> glsoat-<word20+> glffct-<word20+> GR1348941<word20>",
    "bitbucket": "ATBB<alnum28+> ATCTT3<dots60+>",
    "atlassian": "ATATT3<words60+>",
    "artifactory": "AKCp<alnum69> cmVmd<alnum59>",
    "authress": "sc_<low5+>.<low4+>.acc_<word10+>.<wide30+> ext_<low5+>.<low4+>.acc_<word10+>.<wide30+> "
    "authress_<low5+>.<low4+>.acc_<word10+>.<wide30+>",
    "clojars": "CLOJARS_<alnum60>",
    "crates": "cio<alnum32>",
    "docker": "dckr_pat_<word27> dckr_oat_<word27>",
    "doppler": "dp.pt.<alnum40+> dp.st.<dots40+> dp.ct.<alnum40+>",
    "harness": "pat.<word22>.<alnum24>.<alnum20> sat.<word22>.<alnum24>.<alnum20>",
    "infracost": "ico-<alnum32>",
    "launchdarkly": "sdk-<hex8>-<hex4>-<hex4>-<hex4>-<hex12>",
    "npm": "npm_<alnum36>",
    "octopus": "API-<up26>",
    "postman": "PMAK-<hexes24>-<hexes34>",
    "prefect": "pnu_<alnum36>",
    "pypi": "pypi-AgEIcHlwaS5vcmc<word50+> pypi-AgENdGVzdC5weXBpLm9yZ<word50+>",
    "readme": "rdme_<low70>",
    "rubygems": "rubygems_<hex48>",
    "snyk": "snyk_uat.<hex8>.<word40+>",
    "sonar": "squ_<hex40> sqp_<hex40> sqa_<hex40>",
    "sourcegraph": "sgp_<hexes40> sgp_<hexes16>_<hexes40> sgp_local_<hexes40>",
    "sentry": "sntryu_<hex64> sntrys_eyJ<wide80+>",
    "grafana": "eyJrIjoi<alnum70+> glc_<base6432+> glsa_<alnum32>_<hexes8>",
    "dynatrace": "dt0c01.<alnum24>.<alnum64>",
    "posthog": "phx_<alnum40+>",
    "age": "AGE-SECRET-KEY-1<bech3258>",
    "1password": "ops_eyJ<base64200+> A3-<up6>-<up11>-<up5>-<up5>-<up5> A3-<up6>-<up6>-<up5>-<up5>-<up5>-<up5>",
    "defined networking": "dnkey-<words26>-<words52>",
    "intra42": "s-s4t2ud-<hexes64> s-s4t2af-<hexes64>",
    # work, shops, messages
    "adobe": "p8e-<alnum32>",
    "airtable": "pat<alnum14>.<hex64>",
    "duffel": "duffel_test_<words43> duffel_live_<words43>",
    "easypost": "EZAK<alnum54> EZTK<alnum54>",
    "facebook": "EAAM<alnum100+> EAAC<alnum100+> EAAG<alnum60+>",
    "figma": "figd_<word40+>",
    "frame.io": "fio-u-<words64>",
    "hubspot": "pat-na1-<hexes8>-<hexes4>-<hexes4>-<hexes4>-<hexes12> "
    "pat-eu1-<hexes8>-<hexes4>-<hexes4>-<hexes4>-<hexes12>",
    "linear": "lin_api_<alnum40> lin_oauth_<hex64>",
    "maxmind": "<alnum6>_<alnum29>_mmk",
    "mailchimp": "<hex32>-us<digit2> <hex32>-us<digit1>",
    "notion": "ntn_<digit11><alnum35> secret_<alnum43>",
    "plaid": "access-sandbox-<hex8>-<hex4>-<hex4>-<hex4>-<hex12> "
    "access-development-<hex8>-<hex4>-<hex4>-<hex4>-<hex12> "
    "access-production-<hex8>-<hex4>-<hex4>-<hex4>-<hex12>",
    "resend": "re_<alnum8>_<alnum24>",
    "sendgrid": "SG.<word22>.<word43>",
    "sendinblue": "xkeysib-<hex64>-<alnum16>",
    "shippo": "shippo_live_<hexes40> shippo_test_<hexes40>",
    "shopify": "shpat_<hexes32> shpca_<hexes32> shppa_<hexes32> shpss_<hexes32>",
    "slack": "xoxb-<word18+> xoxp-<word18+> xoxe-<word18+> xoxs-<word18+> xoxo-<word18+> xoxc-<word18+> "
    "xoxd-<wide18+> xoxe.xoxp-<word40+> xoxe.xoxb-<word40+> xapp-<word18+>",
    "slack hook": "hooks.slack.com/services/<base6443+> hooks.slack.com/workflows/<base6443+> "
    "hooks.slack.com/triggers/<base6443+>",
    "teams hook": "webhook.office.com/webhookb2/<hex8>-<hex4>-<hex4>-<hex4>-<hex12>"
    "@<hex8>-<hex4>-<hex4>-<hex4>-<hex12>/IncomingWebhook/<hex32>/<hex8>-<hex4>-<hex4>-<hex4>-<hex12>",
    "discord hook": "discord.com/api/webhooks/<digit17+>/<word60+>",
    "square": "sq0atp-<word22+> sq0csp-<word40+> EAAA<word56+>",
    "stripe": "sk_live_<alnum16+> rk_live_<alnum16+> sk_test_<alnum16+> rk_test_<alnum16+> "
    "sk_prod_<alnum16+> rk_prod_<alnum16+> whsec_<wide32+>",
    "telegram": "<digit8>:AA<word33> <digit9>:AA<word33> <digit10>:AA<word33>",
    "twilio": "SK<hex32>",
    "typeform": "tfp_<dots44+>",
    "dropbox": "sl.<words100+>",
}  # fmt: skip

KINDS = _rows()

# -- by its place ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Pattern:
    """What is a secret by where it stands."""

    name: str
    needles: tuple[bytes, ...]
    regex: re.Pattern[str]
    """Its group ``secret`` is the secret."""
    is_one: Callable[[re.Match[str]], bool] = lambda _: True
    """Looks at what was found: examples and words are none."""

    def spans(self, text: str) -> Iterator[tuple[int, int]]:
        """Yield where such secrets stand in a text."""
        for match in self.regex.finditer(text):
            if self.is_one(match):
                yield match.span("secret")


def _looks_random(least: float = 2.5) -> Callable[[re.Match[str]], bool]:
    return lambda match: is_random(match["secret"], least)


def _url_password(match: re.Match[str]) -> bool:
    return is_password(match["secret"], match["user"])


_BARE_URL = late(
    r"(?:^|/)(?P<user>[^\s/:@]{0,100}):(?P<secret>[^\s/@]{3,200})@(?P<host>[\w.\-]+|\[[0-9A-Fa-f:.]+\])(?=[:/?#\s]|$)"
)
_BEGINNING = late(r"(?:^|\s)/*$")
_NO_USERS = frozenset({"mailto", "acct", "sip", "sips", "xmpp", "im", "jid"})
"""What stands before the colon in front of an address that is no password's."""


def bare_url_passwords(text: str, *, quoted: bool = False) -> list[tuple[int, int]]:
    """Return the spans of passwords in a path or a query that names a host without its scheme.

    ``/user:password@host/v1``. Behind a slash only, or at the beginning: in running text the same form is an address
    behind a word (``contact:me@example.com``). A host that has no dot is one where a base URL begins, elsewhere it
    may be anybody's mark (``/models/name:tag@digest``). `quoted`: the text is no path, it may hold one; names of
    recordings look alike but for the slash at the beginning of a word.
    """
    return [
        match.span("secret")
        for match in (_BARE_URL.finditer(text) if "@" in text else ())
        if _url_password(match)
        and (not quoted or text[_word_of(text, match.start())] == "/")
        and match["user"].lower() not in _NO_USERS
        and (_BEGINNING.search(text, 0, match.start()) or match["host"] == "localhost" or not match["host"].isalnum())
    ]


def _word_of(text: str, at: int) -> int:
    """Return where the word begins in which a place is."""
    while at and not text[at - 1].isspace():
        at -= 1
    return at


def _is_form(text: str) -> bool:
    return len(text) < _LONGEST_FORM and not any(char.isspace() for char in text.strip())


_LONGEST_FORM = 20_000
_COMMAND = 400
"""Characters of a command before an option of it."""
_OAUTH = "access_token|refresh_token|id_token|client_secret|client_assertion"
_AFTER_OAUTH = "|".join(f"(?<={name}=)" for name in _OAUTH.split("|"))
_QUERY = [
    "x-amz-signature",
    "x-amz-credential",
    "x-amz-security-token",
    "x-goog-signature",
    "x-goog-credential",
    "x-goog-security-token",
    "signature",
    "sig",
    "hmac",
    "api_key",
    "api-key",
    "apikey",
    "key",
    "token",
    "code",
    "auth_token",
    "subscription-key",
]
_AFTER_QUERY = "|".join(
    f"(?<=[?&;6](?i:{name}){mark})" for name in (*_QUERY, *_OAUTH.split("|")) for mark in ("=", "%3D")
)
"""Behind a border of queries, written in an URL (``&``), in JSON (``\\u0026``) or in another URL (``%26``)."""

PATTERNS: tuple[Pattern, ...] = (
    Pattern(
        "pem",
        (b"PRIVATE KEY",),
        late(
            r"(?P<secret>-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----"
            r"(?:[A-Za-z0-9+/=\s\\:,.>|#]|-(?!-)){40,20000}"
            r"(?:-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----)?)"
        ),
    ),
    Pattern(
        "jwt",
        (b"eyJ",),
        late(
            r"(?P<secret>eyJ(?:(?<![A-Za-z0-9]eyJ)|(?<=\\[nrtbf]eyJ)|(?<=%[0-9A-Fa-f]{2}eyJ)|(?<=[0-9\[]meyJ))"
            r"[\w\-]{8,2000}+\.[\w\-]{16,20000}+\.[\w\-]{16,2000}+(?:\.[\w\-]{1,20000}+){0,2})"
        ),
        _looks_random(3.0),
    ),
    Pattern(
        "bearer",
        (b"earer",),
        late(r"earer(?<=[Bb]earer)(?:\s|%20|\\u0020|\+|:\s?){1,2}(?P<secret>[A-Za-z0-9._~+/\-]{20,4000}={0,2})"),
        lambda match: any(char.isdigit() for char in match["secret"]) and is_random(match["secret"]),
    ),
    Pattern(
        "basic",
        (b"asic ",),
        late(r"asic (?<=[:=\"' ][Bb]asic )(?P<secret>(?=[A-Za-z+/]{0,200}\d)[A-Za-z0-9+/]{12,2000}={0,2})(?![\w/+-])"),
        _looks_random(2.5),
    ),
    Pattern(
        "url",
        (b"://", b":\\/\\/"),
        late(r":(?:\\?/){2}(?P<user>[^\s/:@\"'<>\\]{0,100}):(?P<secret>[^\s/@\"'<>\\]{3,200})@(?=[\w.\-\[])"),
        _url_password,
    ),
    Pattern(
        "aws secret",
        (b"ecret_access", b"ecretAccess", b"ECRET_ACCESS", b"ession_token", b"essionToken", b"ESSION_TOKEN"),
        late(
            r"[eE](?:cret_?[aA]ccess_?[kK]ey|CRET_?ACCESS_?KEY|ssion_?[tT]oken|SSION_?TOKEN)"
            r"\\{0,15}[\"']?\s{0,4}[:=]\s{0,4}\\{0,15}[\"']?"
            r"(?P<secret>[A-Za-z0-9/+]{40,4000}={0,2})(?![A-Za-z0-9/+=])"
        ),
        _looks_random(3.0),
    ),
    Pattern(
        "presigned",
        (
            b"ignature=",
            b"redential=",
            b"ecurity-Token=",
            b"sig=",
            b"oken=",
            b"ey=",
            b"ode=",
            b"ig%3D",
            b"ature%3D",
            b"oken%3D",
            b"ey%3D",
        ),
        late(rf"(?:=|%3D)(?:{_AFTER_QUERY})(?P<secret>[^&\s\"'<>\\#)]{{16,4000}})"),
        _looks_random(2.5),
    ),
    Pattern(
        "oauth",
        (b"ccess_token=", b"efresh_token=", b"d_token=", b"lient_secret=", b"lient_assertion="),
        late(rf"=(?:{_AFTER_OAUTH})(?P<secret>[^&\s\"'<>\\#)]{{8,4000}})"),
        lambda match: is_random(match["secret"], 2.0) or (_is_form(match.string) and is_password(match["secret"])),
    ),
    Pattern(
        "curl header",
        (b"--header", b"-H "),
        late(
            r"(?:-H|--header)[ =]{0,3}\\{0,15}[\"']?[A-Za-z\-]{0,40}(?i:authorization|key|token|secret)\s{0,2}:\s{0,3}"
            r"(?:(?i:bearer|basic|token|apikey)\s{1,3})?(?P<secret>[\w=~@.+/\-]{8,4000})"
        ),
        _looks_random(2.5),
    ),
    Pattern(
        "curl user",
        (b" -u", b" --user", b"\t-u"),
        late(r"[ \t](?:-u|--user)[ =]{0,3}\\{0,15}[\"']?(?P<user>[^\s:\"'\\]{1,100}):(?P<secret>[^\s\"'\\]{3,200})"),
        lambda match: "curl" in match.string[max(0, match.start() - _COMMAND) : match.start()] and _url_password(match),
    ),
)


@dataclass(frozen=True, slots=True)
class Label:
    """What is a secret because a service's name stands before it: ``datadog_api_key = "..."``."""

    whole: re.Pattern[str]
    """With the groups ``label`` and ``value``."""
    named: re.Pattern[str]
    """A label that says what the value is."""
    an_id: re.Pattern[str]
    """Values that are the names of commits, files and rows far more often than keys; they need such a label."""


SERVICES = [
    "adafruit",
    "adobe",
    "ai21",
    "airtable",
    "algolia",
    "alibaba",
    "anyscale",
    "asana",
    "assemblyai",
    "atlassian",
    "auth0",
    "azure",
    "beamer",
    "bitbucket",
    "bittrex",
    "braintree",
    "cloudflare",
    "codecov",
    "cohere",
    "co_api_key",
    "coinbase",
    "confluence",
    "confluent",
    "contentful",
    "datadog",
    "deepgram",
    "deepinfra",
    "deepseek",
    "discord",
    "droneci",
    "dropbox",
    "elevenlabs",
    "etsy",
    "exa",
    "facebook",
    "fastly",
    "finicity",
    "finnhub",
    "flickr",
    "freshbooks",
    "gitter",
    "gocardless",
    "heroku",
    "hubspot",
    "intercom",
    "jfrog",
    "artifactory",
    "bintray",
    "jira",
    "kraken",
    "kucoin",
    "launchdarkly",
    "linear",
    "linkedin",
    "linked_in",
    "lob",
    "mailchimp",
    "mailgun",
    "mapbox",
    "mattermost",
    "meraki",
    "messagebird",
    "mistral",
    "netlify",
    "newrelic",
    "new_relic",
    "nytimes",
    "okta",
    "openweather",
    "pinecone",
    "plaid",
    "privateai",
    "private_ai",
    "qdrant",
    "rapidapi",
    "sendbird",
    "sentry",
    "serpapi",
    "serper",
    "snyk",
    "sonar",
    "square",
    "squarespace",
    "stability",
    "sumo",
    "telegram",
    "travis",
    "trello",
    "twilio",
    "twitch",
    "twitter",
    "typeform",
    "unify",
    "vercel",
    "voyage",
    "wandb",
    "weaviate",
    "yandex",
    "zendesk",
    "zilliz",
]
"""Whose keys have no shape of their own."""

SERVICE = any_of([name.replace("_", mark) for name in SERVICES for mark in ("", "_", "-")])
"""An expression; in lower case."""
LABEL = Label(
    whole=late(
        rf"(?P<label>(?i:{SERVICE})(?![a-z])[\w.\t -]{{0,24}})"
        rf"(?:\\{{0,15}}[\"'`])?\s{{0,3}}(?:=>|:=|=|:|,)\s{{0,3}}(?:\\{{0,15}}[\"'`])?"
        r"(?P<value>[A-Za-z0-9_\-+/.%|:]{14,500}={0,2})(?![A-Za-z0-9])"
    ),
    named=late(r"(?i)key|token|secret|passw|auth|cred|api|pat\b|webhook"),
    an_id=late(r"(?i)[0-9a-f]{40}|[0-9a-f]{64}|[0-9a-f]{32}|[0-9a-f]{24}|[0-9a-f-]{36}|[\d.]+|.*[/.].*"),
)

# -- by its name -------------------------------------------------------------------------------------------------------

PLACEHOLDER = "[REDACTED]"
"""For a header or query value: whatever stood there does not count."""

SECRET_HEADER = late(
    r"auth(?!or(?!i[sz]))|token|secret|(?:^|[-_])(?:api)?key|apikey|cookie|credential|passw|session|signature"
    r"|^openai-(?:organization|project)$|^anthropic-(?:workspace|organization|user-profile)|^x-goog-user-project$"
)
"""Header fields whose value never reaches the store: by name, in lower case. Account ids are among them."""

FINGERPRINTED = frozenset({"x-portkey-virtual-key"})
"""Those of them that choose who answers: a fingerprint of the value is stored, and counts."""

CREDENTIAL_HEADER = late(r"^(?:proxy-)?authorization$|api-?key|token|secret|credential|passw|^cookie$")
"""Those whose value is a credential worth knowing again elsewhere."""

_SURE_MEMBERS = frozenset(
    [
        "api_key",
        "apikey",
        "api-key",
        "access_token",
        "accesstoken",
        "refresh_token",
        "client_secret",
        "client_assertion",
        "id_token",
        "subscription-key",
        "x-api-key",
        "x-goog-api-key",
        "authorization",
        "sig",
        "signature",
        "password",
        "x-amz-signature",
        "x-amz-credential",
        "x-amz-security-token",
        "x-goog-signature",
        "x-goog-credential",
        "awsaccesskeyid",
        "sharedaccesssignature",
    ]
)
_LONG_MEMBERS = frozenset({"key", "token", "auth", "secret", "code", "assertion"})
_LONG = 16
_LONG_VALUE = late(r"(?=\D*\d)[A-Za-z0-9_.~+=-]{16,}")
"""Under these names other things travel too (a page's number, a file's path); only what looks like a key is taken
for one."""


def is_credential_member(name: str, value: str) -> bool:
    """Tell whether a member of a query or a form is a credential."""
    lower = name.lower()
    if lower in _LONG_MEMBERS:
        return value == "REDACTED" or bool(_LONG_VALUE.fullmatch(value))
    return lower in _SURE_MEMBERS


_API_KEYS = frozenset(
    ["api_key", "apikey", "api-key", "access_token", "subscription-key", "x-api-key", "x-goog-api-key", "client_secret"]
)


def is_api_key_member(name: str, value: str) -> bool:
    """Return whether a member of a query is nothing but somebody's key, so that it is looked for elsewhere as well."""
    return name.lower() in _API_KEYS and bool(_LONG_VALUE.fullmatch(value))


_OAUTH_MEMBERS = frozenset(
    ["accesstoken", "refreshtoken", "idtoken", "clientsecret", "clientassertion", "sessiontoken", "authtoken"]
)
"""RFC 6749, and what STS calls them: whatever stands there is a credential."""
_SECRET_MEMBERS = _OAUTH_MEMBERS | frozenset(
    [
        "authorization",
        "proxyauthorization",
        "authorizationtoken",
        "xapikey",
        "xgoogapikey",
        "apikey",
        "secretaccesskey",
        "awssecretaccesskey",
        "awssessiontoken",
        "secretkey",
        "privatekey",
        "bearertoken",
        "cookie",
    ]
)
MEMBERS = tuple(
    (word, late(word + rf'\\*"\s*:\s*\\*"[^"\\]{{{least}}}'))
    for least, words in (
        (16, ("authorization", "key", "cookie")),
        (8, ("secret", "assertion", "token")),
    )
    for word in words
)
"""How a name ends, and for lower case an expression that begins with it; one of them matches wherever a JSON
member has such a name and a value worth a look, escaped or not."""
MEMBER = late(
    r'(?<!\\)(?P<escape>\\*)"(?P<name>[A-Za-z_\-]{4,40})(?P=escape)"\s{0,8}:\s{0,8}'
    r'(?P=escape)"(?P<value>[^"\\]{8,20000})'
)
"""A JSON member with a string, in a text that is not taken apart; `escape` says how deep it is nested."""


def is_secret_member(name: str, value: str, *, said: bool = False) -> bool:
    """Tell whether a JSON member with a string value is a credential: by its name, if the value looks like one too.

    An MCP server's ``authorization``, ``headers: {"x-api-key": ...}``. A word or a sentence under such a name is
    content. `said`: it is a member of the document itself, not of one that is quoted in it; then what OAuth defines
    is taken for what it is.
    """
    bare_name = name.lower().replace("-", "").replace("_", "")
    if bare_name not in _SECRET_MEMBERS or "REDACTE" in value:
        return False
    scheme, space, rest = value.partition(" ")
    bare = rest if space and scheme.lower() in ("bearer", "basic", "token") else value
    if " " in bare or len(bare) < SHORTEST:
        return False
    if bare_name == "cookie" and "=" not in bare:
        return False  # a recipe's; a header field's is name=value
    if said and bare_name in _OAUTH_MEMBERS:
        return is_password(bare)
    return len(value) >= _LONG and any(char.isdigit() for char in bare) and not is_example(bare)


SHORTEST = 8
"""Characters that a credential must have to be looked for elsewhere; shorter ones are words."""

ANSWER_HEADER = late(
    r"(?:^|[-_])(?:authorization|(?:auth|access|security|session|refresh|id|csrf|xsrf|api|user|service|device|bearer"
    r"|vault|amz|private|agent)[-_]?token"
    r"|(?:api|access|subscription|signing|secret|private|auth|master|account|shared|encryption|session)[-_]?key"
    r"|x-token|secret|passw(?:or)?d|(?<!allow-)credentials?"
    r"|cookie2?|jwt)$|^token$"
)
"""Fields of an answer that are credentials by name, in lower case. Not those that count tokens or turn pages."""

DUMMIES = frozenset(
    [
        "not-needed",
        "no-key-required",
        "lm-studio",
        "placeholder",
        "anything",
        "undefined",
        "sk-no-key-required",
        "redacted",
    ]
)
"""Keys that people write where none is needed; hiding the word everywhere would help nobody."""

DROPPED_HEADERS: dict[str, str] = {
    **dict.fromkeys(
        (
            "connection",
            "keep-alive",
            "proxy-connection",
            "proxy-authenticate",
            "te",
            "trailer",
            "transfer-encoding",
            "upgrade",
        ),
        "hop by hop (RFC 9110 7.6.1)",
    ),
    "content-length": "of the coded body; bodies are stored decoded",
    "date": "made anew when it is replayed",
    **dict.fromkeys(("set-cookie", "set-cookie2"), "a credential"),
    **dict.fromkeys(
        ("alt-svc", "strict-transport-security", "expect-ct"), "would send the client elsewhere than to us"
    ),
    **dict.fromkeys(("report-to", "nel", "reporting-endpoints"), "would make clients report to others"),
    **dict.fromkeys(
        ("openai-organization", "openai-project", "anthropic-organization-id", "anthropic-workspace-id"),
        "whose account it was",
    ),
}
"""Response fields that are not stored, with the reason; ``cf-*`` besides, which are the CDN's."""
DROPPED_PREFIXES = ("cf-", "x-llmproxy-")
