"""Kinds of secrets: by shape, by context, by name. Tables only.

    "dop_v1_<hex64>"     literal text, then 64 characters of the alphabet ``hex``
    "gsk_<alnum20+>"     20 or more: as far as the alphabet matches

Sources: most prefixes, alphabets and lengths are from gitleaks (github.com/gitleaks/gitleaks, config/gitleaks.toml,
commit 009e025), without its generic rule; the rest from the services' own pages (2026), GitHub's secret scanning
patterns, RFC 6749, RFC 7468, RFC 7519.
"""

from __future__ import annotations

import base64
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache

from llmproxy.core.secrets import entropy
from llmproxy.core.secrets.entropy import (
    is_literal_not_template_or_call,
    is_random_value,
    is_real_password,
    split_into_words,
    split_words_to_set,
)
from llmproxy.lazy_regex import late

ALPHABETS = {
    "hex": "0-9a-f", "hexes": "0-9a-fA-F", "digit": "0-9", "low": "a-z0-9", "up": "A-Z0-9", "alnum": "A-Za-z0-9",
    "word": r"A-Za-z0-9_\-", "words": r"A-Za-z0-9_\-=", "dots": r"A-Za-z0-9_\-=.", "base64": "A-Za-z0-9+/",
    "base32": "A-Z2-7", "bech32": "QPZRY9X8GF2TVDW0S3JN54KHCE6MUA7L", "wide": r"A-Za-z0-9_\-+/=.~",
}  # fmt: skip
"""Alphabets for angle brackets, each as the inside of a character class."""

_ONE_CASE = {"hex", "hexes", "digit", "low", "up", "base32", "bech32"}
_PIECE = late(rf"<({'|'.join(sorted(ALPHABETS, key=len, reverse=True))})(\d+)(\+?)>")


def build_alternation(words: Iterable[str]) -> str:
    """Return an expression for the longest of these words; one step per character, for any number of words."""
    tree: dict[str, list[str]] = defaultdict(list)
    for word in words:
        if word:
            tree[word[0]].append(word[1:])
    branches = [re.escape(char) + build_alternation(rest) for char, rest in tree.items()]
    if not branches:
        return ""
    return f"(?:{'|'.join(branches)})" + ("" if all(words) else "?")


def slugify_secret_kind(name: str) -> str:
    """Return the name of a kind in placeholders: ``openai project`` is ``openai-project``."""
    return name.partition(",")[0].replace(" ", "-").replace(".", "-")


@dataclass(frozen=True)
class SecretKind:
    name: str
    template: str
    wordy: bool = False
    """Whether words look like it (``sk-learn-...``): keys need a run of 12 letters and digits with a digit."""
    entropy: float = 3.0
    """Minimum bits per character of the part without literal text: repeated letters are examples."""

    @property
    def label(self) -> str:
        return slugify_secret_kind(self.name)

    @cached_property
    def needle(self) -> str:
        """Literal text that must occur before further tests: the longest with a known position in the key."""
        return max(re.split(r"<[^>]*>", re.split(r"<[^>]*\+>", self.template)[0]), key=len)

    @cached_property
    def alphabet_allows_words(self) -> bool:
        return not {piece[1] for piece in _PIECE.finditer(self.template)} <= _ONE_CASE

    @cached_property
    def length_before_needle(self) -> int:
        before = self.template.partition(self.needle)[0]
        return len(_PIECE.sub("", before)) + sum(int(piece[2]) for piece in _PIECE.finditer(before))

    @property
    def expression_starting_at_needle(self) -> str:
        """An expression for the needle and the rest of its run of key characters."""
        return _template_to_regex(re.split("(?<=.)[:@]", self.template[self.template.index(self.needle) :])[0])


def _template_to_regex(template: str) -> str:
    out, at = [], 0
    for piece in _PIECE.finditer(template):
        out.append(re.escape(template[at : piece.start()]))
        out.append(f"[{ALPHABETS[piece[1]]}]{{{piece[2]}{',' if piece[3] else ''}}}")
        at = piece.end()
    return "".join([*out, re.escape(template[at:])])


@cache
def compile_secret_template(template: str, *, loose: bool = False) -> re.Pattern[str]:
    """Return a template's pattern, up to its open end; `loose`: with any text after it."""
    end = "" if loose or template.endswith("+>") else r"(?![A-Za-z0-9])"
    return re.compile(_template_to_regex(template) + end)


_PLAIN = 2.3  # minimum for short hexadecimal keys: 16 digits of 16 have 3.2 bits on average, seldom less than 2.5

_WORDY = {
    "openai": "sk-<word20+>", "xai": "xai-<alnum20+>", "cerebras": "csk-<alnum30+>", "tavily": "tvly-<word20+>",
    "voyage": "pa-<word40+>", "openai session": "sess-<alnum32+>", "firecrawl": "fc-<hex32>",
    "factory": "fk-<word40+>", "devin": "apk_<word30+>", "supermemory": "sm_<word40+>", "zep": "z_1dWlkIjoi<wide30+>",
    "predibase": "pb_<word22+>", "composio": "ak_<word20>", "lambda": "secret_<low2+>_<hex32>.<alnum32>",
}  # fmt: skip
_COARSE = {
    "aws": "AKIA<up16> ASIA<up16> ABIA<up16> ACCA<up16> A3T<up17>",
    "settlemint": "sm_aat_<alnum16> sm_pat_<alnum16> sm_sat_<alnum16>",
    "flutterwave": "FLWSECK_TEST-<low12+> FLWSECK-<low32+> FLWPUBK_TEST-<low32+>",
    "new relic": "NRAK-<up27> NRII-<word32> NRJS-<hex19>", "databricks": "dapi<hex32>",
    "slack, old": "xoxa-<word12+> xoxr-<word12+>", "gitlab session": "_gitlab_session=<low32>",
}  # fmt: skip
_TABLE = {
    # models, and other services of agents
    "openai project": "sk-proj-<word16+> sk-svcacct-<word16+> sk-admin-<word16+>",
    "openai ephemeral": "ek_<alnum20+>", "anthropic": "sk-ant-<word16+>", "openrouter": "sk-or-<word16+>",
    "langfuse": "sk-lf-<word16+>", "bedrock": "ABSK<base64100+> bedrock-api-key-<base6440+>",
    "google": "AIza<word35+> AQ.Ab<word30+>",
    "groq": "gsk_<alnum20+>", "huggingface": "hf_<alnum30+> api_org_<alnum30+>", "replicate": "r8_<alnum30+>",
    "perplexity": "pplx-<alnum30+>", "nvidia": "nvapi-<word40+>", "fireworks": "fw_<alnum22+>",
    "together": "tgp_v1_<word40+>", "jina": "jina_<alnum40+>", "pinecone": "pcsk_<word40+>",
    "langsmith": "lsv2_pt_<hex32>_<hex10> lsv2_sk_<hex32>_<hex10>", "e2b": "e2b_<hex40>", "elevenlabs": "sk_<hex48>",
    "cartesia": "sk_car_<word20+>", "apify": "apify_api_<alnum36>",
    # clouds
    "google oauth": "ya29.<word20+> 1//0<word40+> GOCSPX-<word28>", "alibaba": "LTAI<alnum20>",
    "azure": "<wide3><digit1>Q~<wide31+> AccountKey=<base6486> SharedAccessKey=<base6443>",
    "cloudflare": "v1.0-<hex24>-<hex146>", "digitalocean": "dop_v1_<hex64> doo_v1_<hex64> dor_v1_<hex64>",
    "fly": "fo1_<word43> fm1a_<base64100+> fm1r_<base64100+> fm2_<base64100+>", "heroku": "HRKU-AA<word58>",
    "netlify": "nfp_<alnum36+>", "scalingo": "tk-us-<word48>", "supabase": "sbp_<hex40> sb_secret_<word22+>",
    "tailscale": "tskey-auth-<word20+> tskey-api-<word20+> tskey-client-<word20+>",
    "terraform": "<alnum14>.atlasv1.<words60+>", "openshift": "sha256~<word43>",
    "yandex": "AQVN<word35+> t1.<word30+>.<word86> YCAJE<word20+> YCP<word37>", "clickhouse": "4b1d<alnum38>",
    "planetscale": "pscale_tkn_<dots32+> pscale_oauth_<dots32+> pscale_pw_<dots32+>", "pulumi": "pul-<hex40>",
    "vault": "hvs.<word90+> hvb.<word138+> hvs.CAES<word20+> hvb.AAAA<word20+>", "vault, old": "s.<alnum24>",
    # code, packages, tests
    "github": "ghp_<alnum30+> gho_<alnum30+> ghu_<alnum30+> ghs_<alnum30+> ghr_<alnum30+> github_pat_<word40+>",
    "gitlab": "glpat-<dots20+> glptt-<hex40> gldt-<word20+> glrt-<dots20+> glcbt-<word20+> glft-<word20+> "
    "glimt-<word20+> "    "glagent-<word40+> gloas-<word40+> glsoat-<word20+> glffct-<word20+> GR1348941<word20>",
    "bitbucket": "ATBB<alnum28+> ATCTT3<dots60+>", "atlassian": "ATATT3<words60+>",
    "artifactory": "AKCp<alnum69> cmVmd<alnum59>",
    "authress": "sc_<low5+>.<low4+>.acc_<word10+>.<wide30+> ext_<low5+>.<low4+>.acc_<word10+>.<wide30+> "
    "authress_<low5+>.<low4+>.acc_<word10+>.<wide30+>", "clojars": "CLOJARS_<alnum60>", "crates": "cio<alnum32>",
    "docker": "dckr_pat_<word27> dckr_oat_<word27>", "doppler": "dp.pt.<alnum40+> dp.st.<dots40+> dp.ct.<alnum40+>",
    "harness": "pat.<word22>.<alnum24>.<alnum20> sat.<word22>.<alnum24>.<alnum20>", "infracost": "ico-<alnum32>",
    "launchdarkly": "sdk-<hex8>-<hex4>-<hex4>-<hex4>-<hex12>", "npm": "npm_<alnum36>", "octopus": "API-<up26>",
    "postman": "PMAK-<hexes24>-<hexes34>", "prefect": "pnu_<alnum36>",
    "pypi": "pypi-AgEIcHlwaS5vcmc<word50+> pypi-AgENdGVzdC5weXBpLm9yZ<word50+>", "readme": "rdme_<low70>",
    "rubygems": "rubygems_<hex48>", "snyk": "snyk_uat.<hex8>.<word40+>",
    "sonar": "squ_<hex40> sqp_<hex40> sqa_<hex40>",
    "sourcegraph": "sgp_<hexes40> sgp_<hexes16>_<hexes40> sgp_local_<hexes40>",
    "sentry": "sntryu_<hex64> sntrys_eyJ<wide80+>",
    "grafana": "eyJrIjoi<alnum70+> glc_<base6432+> glsa_<alnum32>_<hexes8>",
    "dynatrace": "dt0c01.<alnum24>.<alnum64>", "posthog": "phx_<alnum40+>", "age": "AGE-SECRET-KEY-1<bech3258>",
    "1password": "ops_eyJ<base64200+> A3-<up6>-<up11>-<up5>-<up5>-<up5> A3-<up6>-<up6>-<up5>-<up5>-<up5>-<up5>",
    "defined networking": "dnkey-<words26>-<words52>", "intra42": "s-s4t2ud-<hexes64> s-s4t2af-<hexes64>",
    # work, shops, messages
    "adobe": "p8e-<alnum32>", "airtable": "pat<alnum14>.<hex64>",
    "duffel": "duffel_test_<words43> duffel_live_<words43>", "easypost": "EZAK<alnum54> EZTK<alnum54>",
    "facebook": "EAAM<alnum100+> EAAC<alnum100+> EAAG<alnum60+>", "figma": "figd_<word40+>",
    "frame.io": "fio-u-<words64>",
    "hubspot": "pat-na1-<hexes8>-<hexes4>-<hexes4>-<hexes4>-<hexes12> "
    "pat-eu1-<hexes8>-<hexes4>-<hexes4>-<hexes4>-<hexes12>", "linear": "lin_api_<alnum40> lin_oauth_<hex64>",
    "maxmind": "<alnum6>_<alnum29>_mmk", "mailchimp": "<hex32>-us<digit2> <hex32>-us<digit1>",
    "notion": "ntn_<digit11><alnum35> secret_<alnum43>",
    "plaid": "access-sandbox-<hex8>-<hex4>-<hex4>-<hex4>-<hex12> "
    "access-development-<hex8>-<hex4>-<hex4>-<hex4>-<hex12> "
    "access-production-<hex8>-<hex4>-<hex4>-<hex4>-<hex12>", "resend": "re_<alnum8>_<alnum24>",
    "sendgrid": "SG.<word22>.<word43>", "sendinblue": "xkeysib-<hex64>-<alnum16>",
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
    "telegram": "<digit8>:AA<word33> <digit9>:AA<word33> <digit10>:AA<word33>", "twilio": "SK<hex32>",
    "typeform": "tfp_<dots44+>",
    # added 2026-11: from services' pages and known prefixes, not each checked against a key
    "langsmith, old": "ls__<hex32>", "helicone": "sk-helicone-<word16+> pk-helicone-<word16+>",
    "llamacloud": "llx-<alnum40+>", "mem0": "m0-<alnum36+>", "braintrust": "bt-st-<alnum40+>",
    "humanloop": "hl_sk_<alnum40+>", "promptlayer": "pl_<hex32>", "browserbase": "bb_live_<word20+> bb_test_<word20+>",
    "friendli": "flp_<alnum40+>", "runpod": "rpa_<alnum40+>", "modal": "as-<alnum22> ak-<alnum22>",
    "cursor": "crsr_<alnum40+>", "runway": "key_<hex128>",
    "luma": "luma-<hex8>-<hex4>-<hex4>-<hex4>-<hex12>-<hex8>-<hex4>-<hex4>-<hex4>-<hex12>",
    "letta": "sk-let-<word30+>", "weights and biases": "wandb_v1_<word40+>", "dify": "dataset-<alnum24>",
    "vercel": "vcp_<alnum24+> vci_<alnum24+> vca_<alnum24+> vcr_<alnum24+> vck_<alnum24+> vercel_blob_rw_<word30+>",
    "cloudflare token": "cfk_<alnum40+> cfut_<alnum40+> cfat_<alnum40+>",
    "netlify, all": "nfc_<alnum36+> nfo_<alnum36+> nfb_<alnum36+> nfu_<alnum36+>", "render": "rnd_<alnum28+>",
    "neon": "napi_<alnum60+> npg_<alnum12>", "convex": "convex_<hex60+>",
    "azure storage": "<base6476>+ASt<base645+>== <base6476>+ABa<base645+>== <base6476>ACDb<base645+>==",
    "azure search": "<alnum42>AzSe<alnum6>", "azure functions": "<word44>AzFu<word5>== <word44>AzFu<word6>=",
    "azure cache": "<base6433>AzCa<base646>=",
    "azure events": "<base6433>+AEh<base646>= <base6433>+ASb<base646>= <base6433>+ARm<base646>= "
    "<base6433>AIoT<base646>=",
    "azure registry": "<base6442>+ACR<alnum6>", "azure openai": "<alnum52>JQQJ99<alnum26>",
    "azure devops": "<alnum76>AZDO<alnum4>", "google hmac": "GOOG1E<up57> GOOG<low20>", "tencent": "AKID<alnum32>",
    "gitlab, new": "glrtr-<dots20+> glwt-<word20+> glpat-<word27>.<low2>.<low7+>",
    "circleci": "CCIPAT_<alnum22>_<hex40> CCIPRJ_<alnum22>_<hex40>",
    "buildkite": "bkua_<hex40> bkaj_<alnum36+> bkct_<alnum36+> bkpt_<alnum36+>",
    "infisical": "st.<hex24>.<hex32>.<hex32>", "vault recovery": "hvr.<word90+>", "nuget": "oy2<low43>",
    "packagist": "packagist_ort_<hex68> packagist_out_<hex68> packagist_uut_<hex68>",
    "sourcegraph, old": "slk_<hexes64>", "kong": "kpat_<alnum40+> spat_<alnum40+>",
    "asana": "2/<digit16>/<digit16>:<hex32> 1/<digit16>:<hex32>", "clickup": "pk_<digit8>_<up32> pk_<digit7>_<up32>",
    "contentful": "CFPAT-<word43>", "figma, oauth": "figu_<word40+> figor_<word40+>", "webflow": "ws-<hex64>",
    "woocommerce": "ck_<hex40> cs_<hex40>",
    "paddle": "pdl_live_apikey_<low26>_<alnum22>_<alnum3> pdl_sdbx_apikey_<low26>_<alnum22>_<alnum3>",
    "razorpay": "rzp_live_<alnum14> rzp_test_<alnum14>", "mollie": "live_<alnum30> test_<alnum30>",
    "lob": "live_<hex35> test_<hex35> live_pub_<hex31> test_pub_<hex31>",
    "stripe, organisation": "sk_org_live_<alnum16+> sk_org_test_<alnum16+>", "adyen": "AQE<alnum5>mfx<base6440+>",
    "mailgun": "key-<hex32> <hex32>-<hex8>-<hex8>", "brevo": "xsmtpsib-<hex64>-<alnum16>",
    "onesignal": "os_v2_app_<low90+>", "nylas": "nyk_v0_<alnum60+>", "telnyx": "KEY<hexes32>_<alnum22>",
    "discord bot": "<base6424>.<word6>.<word27+> mfa.<word80+>", "linkedin": "WPL_AP1.<word16>.<base646+>",
    "zoho": "1000.<hex32>.<hex32>", "mapbox": "sk.eyJ1Ijoi<wide60+>",
    "honeycomb": "hcaik_<alnum50+> hcxik_<alnum50+> hcxmk_<alnum50+> hcamk_<alnum50+>",
    "axiom": "xaat-<hex8>-<hex4>-<hex4>-<hex4>-<hex12> xapt-<hex8>-<hex4>-<hex4>-<hex4>-<hex12>",
    "posthog, secret": "phs_<alnum40+>", "sentry, app": "sntrya_<hex64> sntryi_<hex64>",
    "dynatrace, all": "dt0s01.<alnum8>.<alnum64> dt0s08.<alnum8>.<alnum64>", "rootly": "rootly_<hex64>",
    "dbt": "dbtc_<word30+> dbtu_<word30+>", "databricks, oauth": "dose<hex32> dkea<hex32> dsapi<hex32>",
    "prefect, bot": "pnb_<alnum36>", "mongodb atlas": "mdb_sa_sk_<word40+> mdb_sa_id_<hex24>",
    "cockroach": "CCDB1_<alnum22>_<alnum40>", "trigger": "tr_prod_<alnum20+> tr_dev_<alnum20+> tr_stg_<alnum20+>",
    "inngest": "signkey-prod-<hex64> signkey-test-<hex64>", "stytch": "secret-live-<word32+> secret-test-<word32+>",
    "statsig": "secret-<alnum40+>",
    "launchdarkly, api": "api-<hex8>-<hex4>-<hex4>-<hex4>-<hex12> mob-<hex8>-<hex4>-<hex4>-<hex4>-<hex12>",
    "flagsmith": "ser.<alnum22>", "alchemy": "alcht_<alnum30>", "quicknode": "QN_<hex32>", "bitcoin": "xprv<alnum107>",
    "n8n": "n8n_api_<alnum40>", "retool": "retool_<alnum20>_<alnum20+>", "ubidots": "BBFF-<alnum30>",
    "linode": "linode_<hex64>", "shopify, all": "shptka_<hexes32> shpit_<hexes32>",
    "slack, config": "xoxe-1-<word100+> xapp-1-<up8+>-<digit10+>-<hex64>", "ngrok": "ak_<alnum27> ngrok_<alnum40+>",
    "supabase, v0": "sbp_v0_<hex40>", "tailscale, all": "tskey-webhook-<word20+> tskey-scim-<word20+>",
    "firebase": "<alnum11>:APA91b<word130+>", "gocardless": "live_<word40> sandbox_<word40>",
    "polar": "polar_oat_<alnum40+> polar_pat_<alnum40+>", "depot": "depot_org_<hex64> depot_project_<hex64>",
    "semgrep": "sgp_<hexes64>", "cratesio, new": "cratesio_<alnum32+>", "dropbox": "sl.<words100+>",
    # added 2026-11-27: further keys from the rules of gitleaks and trufflehog and from the services' pages
    "novita": "sk_<alnum43>", "cursor, api": "key_<hex64>", "retell": "key_<hex28>", "turbopuffer": "tpuf_<alnum32+>",
    "chroma": "ck-<alnum40+>", "daytona": "dtn_<hex64>", "browser use": "bu_<word40+>", "arcade": "arc_<alnum40+>",
    "xata": "xau_<alnum30+>", "tinybird": "p.eyJ<word20+>.<word20+>", "confluent": "cflt<base6460>",
    "deno": "ddp_<alnum36> ddo_<alnum36>", "kaggle": "KGAT_<hex32>", "canva": "cnvca<alnum40+>",
    "you": "ydc-sk-<word30+>", "trello": "ATTA<hexes64+>", "klaviyo": "pk_<hex34>", "intercom": "dG9rO<base6440+>",
    "new relic, old": "<hexes36>NRAL",
    "hubspot, all": "pat-na2-<hexes8>-<hexes4>-<hexes4>-<hexes4>-<hexes12> "
    "pat-na3-<hexes8>-<hexes4>-<hexes4>-<hexes4>-<hexes12> pat-ap1-<hexes8>-<hexes4>-<hexes4>-<hexes4>-<hexes12>",
    "elastic": "essu_<base6440+>", "jumpcloud": "jca_<alnum36+>",
    "doppler, all": "dp.sa.<alnum40+> dp.scim.<alnum40+> dp.audit.<alnum40+>", "alibaba, sts": "STS.N<alnum20+>",
    "volcengine": "AKLT<base6440+>", "upcloud": "ucat_<alnum26>", "baidu": "bce-v3/ALTAK-<alnum21>/<hex40>",
    "postman, all": "PMAT-<up26>", "socket": "sktsec_<word36+>", "openpipe": "opk_<alnum30+>",
    "featherless": "rc_<hex64>", "chutes": "cpk_<hex32>.<hex32>.<alnum32>", "inference": "inference-<hex32>",
    "amp": "sgamp_user_<word40+>", "steel": "ste-<alnum60+>", "rollbar": "post_<hex32>",
    "datadog": "ddpat_<alnum22>_<hex40> ddapp_<alnum34+>", "vault, short": "hvs.<alnum24>",
}  # fmt: skip

KINDS = tuple(
    SecretKind(name, template, wordy, least)
    for table, wordy, least in ((_TABLE, False, 3.0), (_WORDY, True, 3.0), (_COARSE, False, _PLAIN))
    for name, templates in table.items()
    for template in templates.split()
)

# -- by context --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SecretPattern:
    name: str
    needles: tuple[bytes, ...]
    regex: re.Pattern[str]
    """Its group ``secret`` matches the secret."""
    is_one: Callable[[re.Match[str]], bool] = lambda _: True
    """Checks a match: examples and words are no secrets."""
    near: str = ""
    """For common needles: an expression (`LazyRegex`) for more context, with ``?`` for other characters."""
    certain: bool = False
    """Whether the form is unmistakable; otherwise the placeholder has a fingerprint."""

    @property
    def label(self) -> str:
        return slugify_secret_kind(self.name) if self.certain else ""

    def iter_spans(self, text: str) -> Iterator[tuple[int, int]]:
        for match in self.regex.finditer(text):
            if self.is_one(match):
                yield match.span("secret")


def _build_random_check(least: float = 2.5) -> Callable[[re.Match[str]], bool]:
    return lambda match: entropy.is_high_entropy_text(match["secret"], least)


def _is_password(match: re.Match[str]) -> bool:
    return is_real_password(match["secret"], match["user"]) and not ("," in match["secret"] and ":" in match["secret"])


_BARE_URL = late(
    r"(?:^|/)(?P<user>[^\s/:@]{0,100}):(?P<secret>[^\s/@]{3,200})@(?P<host>[\w.\-]+|\[[0-9A-Fa-f:.]+\])(?=[:/?#\s]|$)"
)
_BEGINNING = late(r"(?:^|\s)/*$")
_NO_USERS = frozenset({"mailto", "acct", "sip", "sips", "xmpp", "im", "jid"})
"""Words before a colon that make the following address no password."""
_DIGESTS = frozenset({"sha256", "sha512"})  # what follows the tag of an image (``/v2/name:tag@sha256:...``)


def find_schemeless_url_passwords(text: str, *, quoted: bool = False) -> list[tuple[int, int]]:
    """Return the spans of passwords in a path or a query that names a host without its scheme.

    ``/user:password@host/v1``. Only after a slash, or at the beginning: in running text the same form is an address
    after a word (``contact:me@example.com``). A host without a dot counts only where a base URL begins, or after a
    random password, because elsewhere it may be a tag (``/models/name:tag@digest``). `quoted`: the text is not a path
    but may contain one; names of recordings look alike except for the slash at the beginning of a word.
    """
    return [
        match.span("secret")
        for match in _BARE_URL.finditer(text)
        if _is_password(match)
        and (not quoted or text[: match.start() + 1].rsplit(maxsplit=1)[-1].startswith("/"))
        and match["user"].lower() not in _NO_USERS
        and (
            _BEGINNING.search(text, 0, match.start())
            or match["host"] == "localhost"
            or not match["host"].isalnum()
            or (match["host"] not in _DIGESTS and is_random_value(match["secret"], 12))
        )
    ]


_FORM = late(r"[\w.%\-]{1,60}=[\w.~%+*/!:\-]*(?:&[\w.%\-]{1,60}=[\w.~%+*/!:=\-]*)+\s*")
_LONGEST_FORM = 20_000
_COMMAND = 400  # characters of a command before an option that are searched
_CONTEXT = 300
"""Characters around a member of a connection string, or of a JWK, that are searched for the other members."""
_OAUTH = split_into_words("access_token refresh_token id_token client_secret client_assertion")
_QUERY = split_into_words(
    "x-amz-signature x-amz-credential x-amz-security-token x-goog-signature x-goog-credential x-goog-security-token "
    "signature sig hmac api_key api-key apikey key token code auth_token subscription-key pwd pass passwd password jwt "
    "bearer credentials secret"
)
_AFTER_QUERY = "|".join(f"(?<=[?&;6](?i:{name}){mark})" for name in (*_QUERY, *_OAUTH) for mark in ("=", "%3D"))
r"""After a border of queries in a URL (``&``), in JSON (``\u0026``) or in another URL (``%26``)."""
_AFTER_OAUTH = "|".join(f"(?<={name}=)" for name in _OAUTH)
_IN_QUERY = r"[^&\s\"'`<>\\#(){}\[\],;|]"
_CONNECTION = late(
    r"(?i)jdbc:|\b(?:server|host|hostaddr|data source|user id|uid|user|username|dsn|driver|dbname|database|"
    r"initial catalog|accountendpoint|endpoint)\s?="
)
_JWK = late(r'"kty\\*"')
_PAIRS_OF_COOKIE = late(r"(?P<name>[\w.\-]{1,60})=(?P<secret>[^;\s\"'\\,]{8,4000})")
_OF_COOKIE = split_words_to_set("path domain expires max-age samesite version comment priority")


def _is_oauth_token(match: re.Match[str]) -> bool:
    if entropy.is_probable_token(match["secret"]):
        return True
    text = match.string
    return len(text) < _LONGEST_FORM and _FORM.fullmatch(text) is not None and is_real_password(match["secret"])


def _is_connection_password(match: re.Match[str]) -> bool:
    text, (start, end) = match.string, match.span()
    if not _CONNECTION.search(text[max(0, start - _CONTEXT) : end + _CONTEXT]):
        return False
    secret, bordered = match["secret"], ";" in text[end : end + 1] or text[start - 1 : start] in (";", "&", "?")
    return entropy.is_real_value_of_password_name(secret) or (
        bordered and is_real_password(secret) and is_literal_not_template_or_call(secret)
    )


def _is_base64_login(match: re.Match[str]) -> bool:
    try:
        user, colon, password = base64.b64decode(match["secret"], validate=True).decode("ascii").partition(":")
    except ValueError:
        return False
    return bool(colon) and user.isprintable() and password.isprintable() and is_real_password(password, user)


def _is_jwk_secret(match: re.Match[str]) -> bool:
    around = match.string[max(0, match.start() - 10 * _CONTEXT) : match.end() + 10 * _CONTEXT]
    return _JWK.search(around) is not None and is_random_value(match["secret"])


@dataclass(frozen=True, slots=True)
class CookieSecretPattern(SecretPattern):
    """Random values of a ``Cookie`` or ``Set-Cookie`` field in a text."""

    def iter_spans(self, text: str) -> Iterator[tuple[int, int]]:
        for match in self.regex.finditer(text):
            for pair in _PAIRS_OF_COOKIE.finditer(text, *match.span("secret")):
                if pair["name"].lower() not in _OF_COOKIE and is_random_value(pair["secret"]):
                    yield pair.span("secret")


_SPACE = r"[\s?\x1c-\x1f]"


def ignore_case_in_pattern(text: str) -> str:
    """Return an expression for letters in either case, with letters outside ASCII that Python treats as equal."""
    return f"(?i:{re.sub('[ks]', r'[\g<0>?]', text)})"


_CRLF = r"(?:\r\n|\\{1,15}r\\{1,15}n)"


def _build_form_field(name: str) -> re.Pattern[str]:
    """Return an expression for the value of a multipart form's plain field; a file's has another parameter."""
    return late(
        rf'form-data;[ \t]*name=\\{{0,15}}"?{name}\\{{0,15}}"?[ \t]*{_CRLF}(?:[^\r\n\\]{{1,500}}{_CRLF}){{0,8}}{_CRLF}'
        rf"(?P<secret>(?!\[?RED(?:[ACTE]{{0,4}}\*|ACTED|x))(?:[^\r\n\\]|\\(?!\\*[rn])){{4,20000}})(?={_CRLF}(?:--|\Z))"
    )


_GAP = r"(?:[\s>|#]|\\{1,15}[nrt]){0,40}+"
_CUT_KEY = (
    rf"{_GAP}(?:(?:Proc-Type|DEK-Info|Version|Comment|Hash|Charset):[^\r\n\\\"]{{1,200}}{_GAP}){{0,9}}"
    rf"[A-Za-z0-9+/=]{{40,20000}}+(?:{_GAP}[A-Za-z0-9+/=]{{40,20000}}+){{0,400}}+"
    rf"(?:{_GAP}(?=[A-Za-z]*[0-9+/=])[A-Za-z0-9+/=]{{16,}})?"
)
"""Header fields of a private key and its lines of base64; of the rest, which may be prose, one that looks random."""

PATTERNS: tuple[SecretPattern, ...] = (
    SecretPattern(
        "private key", (b"PRIVATE KEY",),
        late(
            r"(?P<secret>-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----(?:"
            r"(?=(?:[^\-]|-(?!-)){0,1000}?[A-Za-z0-9+/]{16})(?:[A-Za-z0-9+/=\s\\:,.>|#]|-(?!-)){40,20000}+"
            rf"-----END [A-Z0-9 ]{{0,40}}PRIVATE KEY(?: BLOCK)?-----|{_CUT_KEY}))"
        ), certain=True,
    ),
    SecretPattern(
        "jwt", (b"eyJ",),
        late(
            r"(?P<secret>eyJ(?:(?<![A-Za-z0-9]eyJ)|(?<=\\[nrtbf]eyJ)|(?<=\\u[0-9A-Fa-f]{4}eyJ)|(?<=%[0-9A-Fa-f]{2}eyJ)"
            r"|(?<=[0-9\[]meyJ))"
            r"[\w\-]{8,2000}+\.[\w\-]{16,20000}+\.[\w\-]{16,2000}+(?:\.[\w\-]{1,20000}+){0,2})"
        ),
        _build_random_check(3.0),
    ),
    SecretPattern(
        "bearer", (b"earer",),
        late(r"earer(?<=[Bb]earer)(?:\s|%20|\\u0020|\+|:\s?){1,2}(?P<secret>[A-Za-z0-9._~+/\-]{20,4000}={0,2})"),
        lambda match: entropy.is_probable_token(match["secret"]),
        rf"earer(?:{_SPACE}|%20|\\u0020|\+|:{_SPACE}?){{1,2}}[A-Za-z0-9._~+/\-]{{6}}",
    ),
    SecretPattern(
        "basic", (b"asic ",),
        late(r"asic (?<=[:=\"' ][Bb]asic )(?P<secret>(?=[A-Za-z+/]{0,200}\d)[A-Za-z0-9+/]{12,2000}={0,2})(?![\w/+-])"),
        _build_random_check(2.5),
    ),
    SecretPattern(
        "url password", (b"://", b":\\/\\/"),
        late(r":(?:\\?/){2}(?P<user>[^\s/:@\"'<>\\]{0,100}):(?P<secret>[^\s/@\"'<>\\]{3,200})@(?=[\w.\-\[])"),
        _is_password, r":(?:\\?/){2}[^\s/:@\"'<>\\]*:[^\s/@\"'<>\\]{3,}@",
    ),
    SecretPattern(
        "aws secret",
        (b"ecret_access", b"ecretAccess", b"ECRET_ACCESS", b"ession_token", b"essionToken", b"ESSION_TOKEN"),
        late(
            r"[eE](?:cret_?[aA]ccess_?[kK]ey|CRET_?ACCESS_?KEY|ssion_?[tT]oken|SSION_?TOKEN)"
            r"\\{0,15}[\"']?\s{0,4}[:=]\s{0,4}\\{0,15}[\"']?"
            r"(?P<secret>[A-Za-z0-9/+]{40,4000}={0,2})(?![A-Za-z0-9/+=])"
        ),
        _build_random_check(3.0),
    ),
    SecretPattern(
        "presigned",
        tuple(
            b"ignature= redential= ecurity-Token= sig= oken= ey= ode= ass= asswd= assword= wd= wt= earer= redentials= "
            b"ecret= ig%3D ature%3D oken%3D ey%3D".split()
        ),
        late(rf"(?:=|%3D)(?:{_AFTER_QUERY})(?P<secret>{_IN_QUERY}{{12,4000}}+)(?![(\[{{])"),
        lambda match: entropy.is_probable_token(match["secret"]),
        rf"[?&;6]{ignore_case_in_pattern('|'.join((*_QUERY, *_OAUTH)))}(?:=|%3D){_IN_QUERY}{{6}}",
    ),
    SecretPattern(
        "oauth", (b"ccess_token=", b"efresh_token=", b"d_token=", b"lient_secret=", b"lient_assertion="),
        late(rf"=(?:{_AFTER_OAUTH})(?P<secret>{_IN_QUERY}{{8,4000}}+)(?![(\[{{])"), _is_oauth_token,
    ),
    SecretPattern(
        "form field", (b"form-data;",), _build_form_field(r"(?P<name>[\w.\-]{2,40})"),
        lambda match: is_credential_parameter(match["name"], match["secret"]),
    ),
    SecretPattern("credential", (b"form-data;",), _build_form_field("(?i:client_(?:secret|assertion))"), certain=True),
    SecretPattern(
        "barred", (b"$production$", b"$sandbox$", b"!AQ", b"django-insecure-"),
        late(
            r"(?<![\w|!$])(?P<secret>access_token\$(?:production|sandbox)\$[0-9a-z]{16}\$[0-9a-f]{32}"
            r"|00[A-Za-z0-9]{13,16}!AQ[A-Za-z0-9._]{60,120}|django-insecure-[a-z0-9!@#$%^&*(\-_=+)]{50})(?![\w|!$])"
        ),
        _build_random_check(3.0), certain=True,
    ),
    SecretPattern(
        "curl header", (b"--header", b"-H "),
        late(
            r"(?:-H|--header)[ =]{0,3}\\{0,15}[\"']?[A-Za-z\-]{0,40}(?i:authorization|key|token|secret)\s{0,2}:\s{0,3}"
            r"(?:(?i:bearer|basic|token|apikey)\s{1,3})?(?P<secret>[\w=~@.+/\-]{8,4000})"
        ),
        _build_random_check(2.5),
        r"(?:-H|--header)[ =]*\\*[\"']?[A-Za-z\-?]*"
        rf"{ignore_case_in_pattern('authorization|key|token|secret')}{_SPACE}*:",
    ),
    SecretPattern(
        "curl user", (b" -u", b" --user", b"\t-u"),
        late(r"[ \t](?:-u|--user)[ =]{0,3}\\{0,15}[\"']?(?P<user>[^\s:\"'\\]{1,100}):(?P<secret>[^\s\"'\\]{3,200})"),
        lambda match: "curl" in match.string[max(0, match.start() - _COMMAND) : match.start()] and _is_password(match),
        r"[ \t](?:-u|--user)[ =]*\\*[\"']?[^\s:\"'\\]+:[^\s\"'\\]{3}",
    ),
    SecretPattern(
        "connection string", (b"assword=", b"ASSWORD=", b"wd=", b"WD="),
        late(r"(?i)\b(?:password|pwd)=(?P<secret>[^;\s&\"'\\<>(){}\[\],]{4,200})"), _is_connection_password,
        rf"{ignore_case_in_pattern('password|pwd')}=[^;\s&\"'\\<>(){{}}\[\],]{{4}}",
    ),
    SecretPattern(
        "dsn", (b"@tcp(", b"@unix("),
        late(r"(?P<user>[\w.\-]{1,100}):(?P<secret>[^\s@/:\"'\\]{3,200})@(?:tcp|unix)\("), _is_password,
    ),
    SecretPattern(
        "netrc", (b"login ", b"login\t", b"login\\n"),
        late(
            r"login(?:\s|\\n){1,8}(?P<user>[^\s\\\"']{1,200})(?:\s|\\n){1,8}password(?:\s|\\n){1,8}"
            r"(?P<secret>[^\s\\\"'<>,;]{6,500})"
        ),
        lambda match: (
            _is_password(match) and is_literal_not_template_or_call(match["secret"])
            and not entropy.is_made_of_words(match["secret"])
        ),
    ),
    SecretPattern(
        "pgpass", (b":5432:",),
        late(r"[\w.*\-]{1,100}:5432:[\w.*\-]{1,100}:(?P<user>[\w.*\-]{1,100}):(?P<secret>[^\s:\"'\\]{4,200})"),
        _is_password,
    ),
    SecretPattern(
        "docker login", (b"auth",),
        late(
            r'auth(?:(?<="auth)|(?<=_auth))\\*"?\s{0,4}[:=]\s{0,4}\\*"?'
            r"(?P<secret>[A-Za-z0-9+/]{8,2000}={0,2})(?![\w+/=])"
        ),
        _is_base64_login, rf"auth\\*\"?{_SPACE}*[:=]{_SPACE}*\\*\"?[A-Za-z0-9+/]{{6}}",
    ),
    SecretPattern(
        "otpauth", (b"otpauth",),
        late(r"otpauth(?:%3[aA]|:)[^\s\"'<>\\]{0,300}?secret(?:=|%3[dD])(?P<secret>[A-Za-z2-7]{8,200})"),
        lambda match: not entropy.is_example_credential(match["secret"]),
    ),
    SecretPattern(
        "jwk", (b'"d', b'"p', b'"q', b'"k'),
        late(r'"(?:d|p|q|dp|dq|qi|k)\\*"\s{0,4}:\s{0,4}\\*"(?P<secret>[\w\-]{22,4000})\\*"'), _is_jwk_secret,
        rf'"(?:d|p|q|dp|dq|qi|k)\\*"{_SPACE}*:{_SPACE}*\\*"[A-Za-z0-9_\-?]{{6}}',
    ),
    CookieSecretPattern(
        "cookie", (b"ookie", b"OOKIE"),
        late(r"(?i:cookie)2?\\{0,3}[\"'\])]{0,2}\s{0,3}[:=]\s{0,3}\\{0,3}[\"']?(?P<secret>[^\r\n\"'\\<>]{8,4000})"),
        near=rf"{ignore_case_in_pattern('cookie')}2?\\*[\"'\])]*{_SPACE}*[:=]{_SPACE}*\\*[\"']?[^\r\n\"'\\<>]{{6}}",
    ),
)  # fmt: skip

_WORDS = split_into_words(
    "alchemy amplitude beamer bunny clerk cohere confluence discord fireworks honeycomb hyperbolic insomnia intercom "
    "iterable kraken linear lob notion paddle perplexity pinecone plaid postmark pusher railway replicate retool "
    "runway sentry slack snowflake sonar square stability stripe sumo telegram twitch unify zoom"
)  # fmt: skip
SERVICES = _WORDS + split_into_words(
    "adafruit adobe agentops ai21 airtable aiven algolia alibaba anyscale appwrite arize artifactory asana "
    "assemblyai atlassian auth0 azure azureml backblaze baseten binance bintray bitbucket bittrex bitwarden bluesky "
    "braintree braze brevo browserbase bugsnag buildkite calendly cerebras checkly circleci clarifai clickup "
    "cloudflare cloudinary cloudsmith co_api_key codecov coinbase coingecko confluent contentful crowdin customerio "
    "datadog deepgram deepinfra deepl deepseek dify dnsimple docusign droneci dropbox dwolla elevenlabs etherscan "
    "etsy everhour exa facebook fal_ai fal_key fastly finicity finnhub firebase fivetran flickr freshbooks freshdesk "
    "galileo giphy github gitlab gitter gladia gocardless godaddy grafana groq helicone heroku hetzner honeybadger "
    "hubspot humanloop infura ipinfo ipstack jfrog jira jotform jumpcloud klaviyo kong kucoin langfuse langsmith "
    "launchdarkly lemonsqueezy letta linked_in linkedin linode livekit loggly logtail mailchimp mailerlite mailgun "
    "mailjet mapbox mapquest marketo mattermost maxmind meilisearch mem0 meraki messagebird mistral mixpanel "
    "moonshot nebius netdata netlify new_relic newrelic newsapi ngrok nightfall novita nylas nytimes okta onesignal "
    "openai openrouter openweather opsgenie optimizely pagerduty paypal paystack pipedrive plivo portkey posthog "
    "private_ai privateai qdrant qwen rapidapi razorpay recaptcha revenuecat rollbar runpod sambanova scaleway "
    "sendbird sendgrid serpapi serper shodan signalwire smartsheet snyk splunk spotify squarespace statuspage "
    "storyblok stytch sumologic supabase survey_monkey tatum tavily telnyx thingsboard tiingo tomtom travis trello "
    "turso twelvelabs twilio twitter typeform typesense upstash vapi vercel virustotal vonage voyage vultr wandb "
    "weaviate webflow wistia workos xai yandex zapier zendesk zeplin zai_api zerobounce zhipu zilliz zoho zyte"
)  # fmt: skip
"""Services whose keys have no form of their own; `_WORDS` only with a `SECRET_LABEL`, since prose has them too."""

SERVICE = build_alternation([name.replace("_", mark) for name in SERVICES for mark in ("", "_", "-")])
"""An expression for the names of services in lower case."""
NEAR_LABEL = (
    rf"{ignore_case_in_pattern(SERVICE)}[A-Za-z0-9_?.\t -]*\\*[\"'`]?{_SPACE}*(?:=>|[:=,]){_SPACE}*"
    r"\\*[\"'`]?[A-Za-z0-9_\-+/.%|:]{8}"
)
"""Context of a secret that follows a service's name, ``datadog_api_key = "..."``; used like `SecretPattern.near`."""
_KEY_WORD = r"(?i:key|token|secret|passw|auth|cred|api|pat\b|webhook)"
SECRET_LABEL = late(_KEY_WORD)
LABELLED = late(
    rf"(?!(?i:{build_alternation(_WORDS)})(?![a-z])(?![\w.\t -]{{0,24}}{_KEY_WORD}))"
    rf"(?P<label>(?i:{SERVICE})(?![a-z])[\w.\t -]{{0,24}})"
    rf"(?:\\{{0,15}}[\"'`])?\s{{0,3}}(?:=>|:=|=|:|,)\s{{0,3}}(?:\\{{0,15}}[\"'`])?"
    r"(?P<value>[A-Za-z0-9_\-+/.%|:]{14,500}={0,2})(?![A-Za-z0-9])"
)
_HEX_ID = r"(?i)(?:0x)?(?:[0-9a-f]{24}|[0-9a-f]{32}|[0-9a-f]{40}|[0-9a-f]{64})"
LABELLED_ID = late(_HEX_ID + r"|[0-9a-f-]{36}|[\d.]+|.*[/.].*|[a-z]+:.*")
"""Values that are ids of commits, files and rows far more often than keys; they need a `SECRET_LABEL`."""

# -- by name -----------------------------------------------------------------------------------------------------------

PLACEHOLDER = "[REDACTED]"  # placeholder of a header or query value that does not count

_LOGIN_HEADER = r"(?:^|[-_])(?:pass(?:phrase|code)?|pwd?|jwt|bearer|pat)$"
SECRET_HEADER = late(
    r"auth(?!or(?!i[sz]))|token|secret|(?:^|[-_])(?:api)?key|apikey|cookie|credential|passw|session|signature"
    rf"|{_LOGIN_HEADER}|^openai-(?:organization|project)$|^anthropic-(?:workspace|organization|user-profile)"
    r"|^x-goog-user-project$"
)
"""Lower-case names of header fields whose value is never stored. Account ids are included."""

FINGERPRINTED = frozenset({"x-portkey-virtual-key"})
"""Secret fields that select the provider or model: a fingerprint of the value is stored, and counts."""

CREDENTIAL_HEADER = late(
    rf"{_LOGIN_HEADER}|(?:^|[-_])auth(?:orization)?$|api[-_]?key|token$|secret|credential|passw|^cookie$"
    r"|(?:^|(?<!idempotency)(?<!websocket)(?<!cache)(?<!surrogate)(?<!partition)(?<!routing)(?<!public)[-_])key$"
)
"""Fields whose value is a credential to search for elsewhere."""

_SURE_MEMBERS = split_words_to_set(
    "api_key apikey api-key access_token accesstoken refresh_token client_secret client_assertion id_token "
    "subscription-key x-api-key x-goog-api-key authorization sig signature password passwd passphrase pwd jwt "
    "bearer x-amz-signature x-amz-credential x-amz-security-token x-goog-signature x-goog-credential "
    "awsaccesskeyid sharedaccesssignature secret_key private_key auth_token session_token"
)
_LONG_MEMBERS = split_words_to_set("key token auth secret code assertion pass credentials x-access x-pass")
_LONG = 16
_LONG_VALUE = late(r"(?=\D*\d)[A-Za-z0-9_.~+=-]{16,}")
"""These names have other uses too (a page's number, a file's path): only values that look like keys count."""


def is_credential_parameter(name: str, value: str) -> bool:
    lower = name.lower()
    if lower in _LONG_MEMBERS:
        return value == "REDACTED" or bool(_LONG_VALUE.fullmatch(value))
    return lower in _SURE_MEMBERS


_API_KEYS = split_words_to_set(
    "api_key apikey api-key access_token subscription-key x-api-key x-goog-api-key client_secret auth_token secret "
    "password passwd"
)


def is_api_key_query_parameter(name: str, value: str) -> bool:
    """Return whether a query member is certainly a key, which is then searched for elsewhere as well."""
    return name.lower() in _API_KEYS and bool(_LONG_VALUE.fullmatch(value))


_OAUTH_MEMBERS = split_words_to_set(
    "accesstoken refreshtoken idtoken clientsecret clientassertion sessiontoken authtoken"
)
"""Names in RFC 6749 and in STS: their values are always credentials."""
CARRIED = split_words_to_set(
    "authorization proxyauthorization authorizationtoken xapikey xgoogapikey bearertoken cookie"
)
"""Names of credentials for another server, an MCP server's ``authorization``."""
_SECRET_MEMBERS = _OAUTH_MEMBERS | CARRIED
_SECRET_MEMBERS |= split_words_to_set("apikey secretaccesskey awssecretaccesskey awssessiontoken secretkey privatekey")
MEMBERS = tuple(
    (word, late(word + rf'\\*"\s*:\s*\\*"[^"\\]{{{least}}}'))
    for least, words in ((16, ("authorization", "key", "cookie")), (8, ("secret", "assertion", "token")))
    for word in words
)
"""End of a name, and a lower-case expression from it on: one of them matches if any JSON member must be examined."""
NAMED_MEMBER = "|".join(rf'{ignore_case_in_pattern(word)}\\*"{_SPACE}*:{_SPACE}*\\*"[^"\\]{{4}}' for word, _ in MEMBERS)
"""An expression that occurs in every text in which one of them matches."""
MEMBER = late(
    r'(?<!\\)(?P<escape>\\*)"(?P<name>[A-Za-z_\-]{4,40})(?P=escape)"\s{0,8}:\s{0,8}'
    r'(?P=escape)"(?P<value>[^"\\]{8,20000})'
)
"""A JSON member with a string value, in unparsed text; `escape` shows its nesting depth."""


_ITSELF = late(r"(?i)(?:^|[-_ ])(?:token|secret|password|key|credentials?)$")
"""An example value that describes the real one."""


def is_secret_member(name: str, value: str, *, said: bool = False) -> bool:
    """Return whether a JSON member with a string value is a credential: by its name, if the value looks like one too.

    `said`: the member belongs to the document itself, not to a quoted one; then OAuth's names are trusted.
    """
    bare_name = name.lower().replace("-", "").replace("_", "")
    if bare_name not in _SECRET_MEMBERS or "REDACTE" in value:
        return False
    scheme, space, rest = value.partition(" ")
    bare = rest if space and scheme.lower() in ("bearer", "basic", "token") else value
    recipe = bare_name == "cookie" and "=" not in bare  # a header field has name=value
    if recipe or " " in bare or len(bare) < SHORTEST:
        return False
    plausible = is_literal_not_template_or_call(bare) and not entropy.is_example_credential(bare)
    if said and bare_name in _OAUTH_MEMBERS:
        return plausible and is_real_password(bare) and bare.isascii() and not _ITSELF.search(bare)
    if bare_name in CARRIED:
        return plausible and len(value) >= _LONG and any(char.isdigit() for char in bare)
    return len(bare) >= _LONG and entropy.is_probable_token(bare)


def is_credential_name(name: str) -> bool:
    bare_name = name.lower().replace("-", "").replace("_", "")
    named = bare_name in _SECRET_MEMBERS or is_credential_parameter(name, "REDACTED")
    return named or SECRET_HEADER.search(name.lower()) is not None


NAME_WORDS = (
    b"pass", b"pw", b"secret", b"token", b"key", b"credential", b"jwt", b"bearer", b"authorization", b"x-access",
    b"_auth",
)  # fmt: skip
"""Endings of the names of secrets, in lower case."""
_BUT_KEY = "pass(?:word|wd|wort|phrase|code)?|pwd?|secret|token|credentials?|jwt|bearer|authorization|x-access|_auth"
_QUOTE = r"(?:\\{0,15}[\"'`])?\]?"
_BLANK = r"(?:[\s,;:{]|\\{1,15}[nrt])"
_BESIDE = (
    rf"{_BLANK}{{1,24}}(?:\\{{0,15}}[\"'`])?(?:parameter)?(?:value|default)(?:\\{{0,15}}[\"'`])?[ \t]{{0,4}}[:=]"
    rf"|</[\w.:\-]{{1,40}}>{_BLANK}{{0,24}}<(?:value|string)>|(?<=[\"'`]),{_BLANK}{{0,24}}(?=\\{{0,15}}[\"'`])"
)
"""Text between a name and its value as two members, attributes, elements or arguments: ``name: X, value: ...``."""
NAMED = late(
    rf"(?P<word>{_BUT_KEY}|key){_QUOTE}(?:[ \t]{{0,4}}(?P<sign>{_BESIDE}|:=|=>|=(?![=~>])|:(?!:)|%3d|>)[ \t]{{0,4}}"
    r"|(?P<gap>[ \t]{1,3}(?=[^\s\-=:])))".encode()
)
"""The end of a name, in lower case, and the text between it and its value."""
_BARE = r"[^\s\"'`\\,;<>(){}\[\]|&]"
_MORE = rf"(?:&(?![\w.%\-]{{1,40}}=|#?\w{{1,8}};){_BARE}{{1,2000}}+){{0,20}}+"
"""Text after an ``&`` that begins neither the next member of a query nor an entity."""
_SCHEMES = "bearer|basic|token|api-?key|bot|key|sso-key"
_SCHEME = rf"(?:(?i:{_SCHEMES})[ +]{{1,3}})?"
_WHOSE_KEY = (
    "(?:api|private|secret|access|auth|encryption|signing|master|account|shared|license|service|session|webhook"
    "|deploy|admin|client|app|root|preshared|subscription|sas|ssh|jwt|hmac|aes|connection|management|server"
    "|integration|write|ingest|project|account_access|ingestion|sending|licence|security|user|dev|prod|rest"
    "|secretaccess|accountaccess)"
)
_SIGNED_NAME = rf"(?:{_BUT_KEY}|(?:_|{_WHOSE_KEY}[_.\-]?)key)\\*[\"'`]?\]?"
_NEAR_BESIDE = (
    rf"(?:[,;:{{\\nrt\"'`]|{_SPACE})*(?:parameter)?(?:value|default)[\\\"'`]*[ \t]*[:=]"
    rf"|</[\w.:\-]+>(?:[,;:{{\\nrt]|{_SPACE})*<(?:value|string)>|,(?:[\\nrt]|{_SPACE})*"
)
NAMED_VALUE = (
    rf"(?i)(?:{_SIGNED_NAME}(?:[ \t]*(?:[=:>]|%3d)|{_NEAR_BESIDE})|--[a-z0-9_\-.$@]*{_SIGNED_NAME}[ \t])"
    rf"[ \t=>]*[rbuf]*\\*[\"'`]?(?:{ignore_case_in_pattern(_SCHEMES)}[ +]{{1,3}})?[^\s\"'`\\]{{6}}"
)
"""An expression that occurs wherever a name and its value must be examined."""
QUOTED_VALUE = late(rf"[rbuf]{{0,2}}\\{{0,15}}[\"'`]{_SCHEME}(?P<value>[^\"'`\\\s]{{8,2000}})(?=\\{{0,15}}[\"'`])")
BARE_VALUE = late(rf"{_SCHEME}(?P<value>{_BARE}{{8,2000}}+{_MORE})(?![(\[{{])")
ENV_VALUE = late(r"(?P<value>[^\s\"'`\\]{8,2000})")  # value after ``NAME=`` at the beginning of a word
NAME_CHARS = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.$@"
_SECRET_NAME = late(
    r"(?:(?P<short>(?<![a-z])(?:pass|pw)|(?:pass(?:word|wd|wort|phrase|code)|pwd))|(?P<secret>secret)"
    r"|(?<![a-z])(?:jwt|bearer|credentials?|(?:proxy-)?authorization|x-access)|_auth|token"
    rf"|{_WHOSE_KEY}[_.\-]?key)$"
)
_OTHER_NAME = late(
    r"(?:(?<![a-z])(?:prev(?:ious)?|skip|max|min|num|pad|eos|bos|unk|sep|mask|cls|start|end|stop|special|image|video"
    r"|audio|row|group|object|trace|input|output|prompt|first|last|current|text|word|sub|lock|no|by|com|change|etag"
    r"|range|request)|page|next|continuation|cursor|sync|resume|cancel(?:lation)?|public|publishable|primary|foreign"
    r"|cache|sort|partition|idempotency|correlation|completion|delimiter|csrf|xsrf|encrypted|hashed|paging"
    r"|pagination|progress(?=[_.\-]?token))[_.\-]?(?:pass|token|key|secret|password)$"
)
_SURE_TOKEN = late(rb"(?:access|auth|api|refresh|bearer|bot|personal|session|id|deploy|private)[_.\-]?token$")
AN_ID = late(_HEX_ID + r"|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|[\d.\-]+")
_SHORT, _MIDDLE, _LONG_ENOUGH = 8, 12, 16


@lru_cache(maxsize=4096)
def is_certain_secret_name(name: bytes) -> bool:
    """Return whether a name means that its value grants access, so that even an id with it is a secret."""
    return not name.endswith(b"token") or _SURE_TOKEN.search(name) is not None


@lru_cache(maxsize=4096)
def get_minimum_secret_length(name: bytes, *, variable: bool) -> int:
    """Return the minimum length of a secret with a lower-case name, or 0; in a `variable` any ``_key`` counts."""
    text = name.decode("ascii", "replace").lstrip("-$@.")
    found = _SECRET_NAME.search(text)
    if (found is None and not (variable and text.endswith("_key"))) or _OTHER_NAME.search(text):
        return 0
    return _LONG_ENOUGH if found is None else _SHORT if found["short"] else _MIDDLE if found["secret"] else _LONG_ENOUGH


SHORTEST = 8  # minimum characters of a credential that is searched for elsewhere; shorter ones are words

ANSWER_HEADER = late(
    r"(?:^|[-_])(?:authorization|(?:auth|access|security|session|refresh|id|csrf|xsrf|api|user|service|device|bearer"
    r"|vault|amz|private|agent)[-_]?token"
    r"|(?:api|access|subscription|signing|secret|private|auth|master|account|shared|encryption|session)[-_]?key"
    r"|x-token|secret|passw(?:or)?d|(?<!allow-)credentials?"
    r"|cookie2?|jwt)$|^token$"
)
"""Lower-case names of an answer's fields that are credentials, except token counts and page tokens."""

DUMMIES = split_words_to_set(
    "not-needed no-key-required lm-studio placeholder anything undefined sk-no-key-required redacted"
)
"""Dummy keys for services that need none; hiding these words everywhere would be useless."""

DROPPED_HEADERS = {
    name: why
    for names, why in {
        "connection keep-alive proxy-connection proxy-authenticate te trailer transfer-encoding upgrade":
            "hop by hop (RFC 9110 7.6.1)",
        "content-length": "of the coded body; bodies are stored decoded", "date": "made anew when it is replayed",
        "set-cookie set-cookie2": "a credential",
        "alt-svc strict-transport-security expect-ct": "would send the client elsewhere than to us",
        "report-to nel reporting-endpoints": "would make clients report to others",
        "openai-organization openai-project anthropic-organization-id anthropic-workspace-id": "whose account it was",
    }.items()
    for name in names.split()
}  # fmt: skip
"""Response fields that are not stored, with the reason; also ``cf-*``, which are the CDN's."""
DROPPED_PREFIXES = ("cf-", "x-llmproxy-")
