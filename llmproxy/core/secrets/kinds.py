"""The kinds of keys that tell by themselves what they are, as data: a prefix that nothing else has, an alphabet, a length.

    "dop_v1_<hex64>"     literal text, then 64 characters of the alphabet ``hex``
    "gsk_<alnum20+>"     20 or more: as far as the alphabet goes

Prefixes, alphabets and lengths are facts of the services; most were read off the default configuration of gitleaks (github.com/gitleaks/gitleaks,
config/gitleaks.toml as of mid-2025, commit 009e025), less its generic rule, whose finds are mostly no secrets; the rest off the services' own pages
(2026). A kind costs nothing until its prefix is met: expressions are compiled then.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

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
    """Return an expression that matches any of these words, the longest; one step a character, however many there are."""
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
    """Words of a text look like it (``sk-learn-...``): only a dozen letters and digits in a row, a digit among them, are a key."""
    entropy: float = 3.0
    """Bits a character that the part without the literal text must have: repeated letters are examples."""

    @property
    def needle(self) -> str:
        """The literal text that must occur before anything else is tried: the longest whose place in the key is known."""
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
    "gitlab": "glpat-<dots20+> glptt-<hex40> gldt-<word20+> glrt-<dots20+> glcbt-<word20+> glft-<word20+> glimt-<word20+> "
    "glagent-<word40+> gloas-<word40+> glsoat-<word20+> glffct-<word20+> GR1348941<word20>",
    "bitbucket": "ATBB<alnum28+> ATCTT3<dots60+>",
    "atlassian": "ATATT3<words60+>",
    "artifactory": "AKCp<alnum69> cmVmd<alnum59>",
    "authress": "sc_<low5+>.<low4+>.acc_<word10+>.<wide30+> ext_<low5+>.<low4+>.acc_<word10+>.<wide30+> authress_<low5+>.<low4+>.acc_<word10+>.<wide30+>",
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
    "hubspot": "pat-na1-<hexes8>-<hexes4>-<hexes4>-<hexes4>-<hexes12> pat-eu1-<hexes8>-<hexes4>-<hexes4>-<hexes4>-<hexes12>",
    "linear": "lin_api_<alnum40> lin_oauth_<hex64>",
    "maxmind": "<alnum6>_<alnum29>_mmk",
    "mailchimp": "<hex32>-us<digit2> <hex32>-us<digit1>",
    "notion": "ntn_<digit11><alnum35> secret_<alnum43>",
    "plaid": "access-sandbox-<hex8>-<hex4>-<hex4>-<hex4>-<hex12> access-development-<hex8>-<hex4>-<hex4>-<hex4>-<hex12> "
    "access-production-<hex8>-<hex4>-<hex4>-<hex4>-<hex12>",
    "resend": "re_<alnum8>_<alnum24>",
    "sendgrid": "SG.<word22>.<word43>",
    "sendinblue": "xkeysib-<hex64>-<alnum16>",
    "shippo": "shippo_live_<hexes40> shippo_test_<hexes40>",
    "shopify": "shpat_<hexes32> shpca_<hexes32> shppa_<hexes32> shpss_<hexes32>",
    "slack": "xoxb-<word18+> xoxp-<word18+> xoxe-<word18+> xoxs-<word18+> xoxo-<word18+> xoxc-<word18+> "
    "xoxd-<wide18+> xoxe.xoxp-<word40+> xoxe.xoxb-<word40+> xapp-<word18+>",
    "slack hook": "hooks.slack.com/services/<base6443+> hooks.slack.com/workflows/<base6443+> hooks.slack.com/triggers/<base6443+>",
    "teams hook": "webhook.office.com/webhookb2/<hex8>-<hex4>-<hex4>-<hex4>-<hex12>@<hex8>-<hex4>-<hex4>-<hex4>-<hex12>/IncomingWebhook/<hex32>/<hex8>-<hex4>-<hex4>-<hex4>-<hex12>",
    "discord hook": "discord.com/api/webhooks/<digit17+>/<word60+>",
    "square": "sq0atp-<word22+> sq0csp-<word40+> EAAA<word56+>",
    "stripe": "sk_live_<alnum16+> rk_live_<alnum16+> sk_test_<alnum16+> rk_test_<alnum16+> sk_prod_<alnum16+> rk_prod_<alnum16+> whsec_<wide32+>",
    "telegram": "<digit8>:AA<word33> <digit9>:AA<word33> <digit10>:AA<word33>",
    "twilio": "SK<hex32>",
    "typeform": "tfp_<dots44+>",
    "dropbox": "sl.<words100+>",
}  # fmt: skip

KINDS = _rows()
