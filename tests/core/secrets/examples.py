"""Secrets of every kind, drawn by lot from the table, and what is no secret at all."""

from __future__ import annotations

import base64
import random
import re

from llmproxy.core.secrets.entropy import has_alphanumeric_run
from llmproxy.core.secrets.secret_kinds import ALPHABETS, KINDS, SERVICES, SecretKind

LENGTHS = {
    "twitter": 45, "freshbooks": 64, "coinbase": 64, "intercom": 60, "kraken": 84, "contentful": 43, "cloudflare": 40,
    "cohere": 40,
    "gitter": 40, "netlify": 40, "sonar": 40, "zendesk": 40, "datadog": 40, "rapidapi": 50, "jfrog": 73,
    "artifactory": 64, "bitbucket": 32,
}  # fmt: skip
"""Of values that services write; 32 where nothing stands here."""


def drawn(template: str, seed: int = 0) -> str:
    lot = random.Random(f"{template} {seed}")

    def piece(match: re.Match[str]) -> str:
        chars = [chr(code) for code in range(33, 127) if re.fullmatch(f"[{ALPHABETS[match[1]]}]", chr(code))]
        text = "".join(lot.choice(chars) for _ in range(int(match[2])))
        return text[:-1] + lot.choice([char for char in chars if char.isalnum()]) if text else text

    names = "|".join(sorted(ALPHABETS, key=len, reverse=True))
    return re.sub(rf"<({names})(\d+)\+?>", piece, template)


def drawn_key(kind: SecretKind) -> str:
    """Return a key of a kind.

    With a digit in a dozen characters, as such keys have nearly always, where that is asked for.
    """
    return next(
        key for key in (drawn(kind.template, seed) for seed in range(99)) if not kind.wordy or has_alphanumeric_run(key)
    )


def of_service(name: str) -> tuple[str, str]:
    """Return an assignment with a service's key, and the key."""
    lot = random.Random(name)
    key = "".join(lot.choice("abcdefghijklmnopqrstuvwxyz0123456789") for _ in range(LENGTHS.get(name, 32)))
    return f'{name}_api_token = "{key}"', key


_B = "abcdefGHIJ0123456789klmnopQRSTUVWXYZ42"
STANDING = {
    "pem": f"-----BEGIN RSA PRIVATE KEY-----\nMIIEpAIBAAKCAQEA{_B}\n{_B}\n-----END RSA PRIVATE KEY-----",
    "pem, cut": f"-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXktdjEAAA{_B}\n{_B}",
    "pgp": f"-----BEGIN PGP PRIVATE KEY BLOCK-----\n\nlQOYBF{_B}\n{_B}\n-----END PGP PRIVATE KEY BLOCK-----",
    "jwt": f"eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiI5OTkifQ.{_B}",
    "jwe": f"eyJhbGciOiJSU0EtT0FFUCJ9.{_B}.{_B[:16]}.{_B}.{_B[:22]}",
    "bearer": f"Authorization: Bearer {_B}",
    "basic": "Authorization: Basic dXNlcjpwYXNzd29yZDEyMw==",
    "url": "postgres://user:hunter22x@db.example.com/x",
    "barred": f"key 00Dd0000000abcd!AQ{_B}{_B}",
    "aws secret": "AWS_SECRET_ACCESS_KEY=wJalrXUtnF3MI/K7MD3NG/bPxRfiCYz42Q9pLKEY",
    "aws session": f"aws_session_token = FwoGZXIvYXdzE{_B}{_B}",
    "presigned": "https://b.s3.amazonaws.com/k?X-Amz-Signature=0123456789abcdef0123456789abcdef",
    "sas": "https://x.blob.core.windows.net/a?sv=2022&sig=lUAyLRCBx0W8qUI0pkW1Cv4N7zyMSGRkk4oItsc1duo%3D",
    "oauth": f"access_token={_B}",
    "curl header": f'curl -H "x-api-key: {_B}"',
    "curl user": "curl https://x.org -u admin:s3cr3t-horse-99",
}
"""Secrets by where they stand; what must vanish is `secret_of`."""


def secret_of(text: str) -> str:
    """Return the part of a standing secret that may not be found anywhere."""
    if "-----BEGIN" in text:
        return _B
    if "sig=" in text:
        return text.partition("sig=")[2]
    if "://user" in text:
        return "hunter22x"
    return re.split(r"[ =:]+", text.strip('"= '))[-1].strip('"=') if "eyJ" not in text else text


LOT = drawn("<alnum32>", 7)
DJANGO = "django-insecure-a(b8$k2)x%q9+w&z7m!3kd0@e_r=t#yu^i*o1p-lhf5g4v6c2n"
SHORT = drawn("<alnum5>", 3) + "#" + drawn("<alnum6>", 4)
HEX = drawn("<hex32>", 5)
B64 = base64.b64encode(random.Random(6).randbytes(32)).decode()
URL64 = drawn("<word43>", 8)
LOGIN = base64.b64encode(f"builder:{SHORT}".encode()).decode()
NAMED: dict[str, tuple[str, str]] = {
    "connection string": (f"Server=db.acme.io;User Id=app;Password={SHORT};Encrypt=true", SHORT),
    "odbc": (f"DRIVER={{PostgreSQL}};SERVER=h;UID=app;PWD={SHORT}", SHORT),
    "jdbc": (f"jdbc:mysql://h:3306/shop?user=app&password={SHORT}", SHORT),
    "libpq": (f"host=h port=5432 dbname=shop user=app password={SHORT} sslmode=require", SHORT),
    "dsn": (f"app:{SHORT}@tcp(10.0.0.7:3306)/shop", SHORT),
    "netrc": (f"machine api.acme.io login bot password {SHORT}", SHORT),
    "pgpass": (f"db.acme.io:5432:shop:app:{SHORT}", SHORT),
    "docker login": (f'{{"auths": {{"r.acme.io": {{"auth": "{LOGIN}"}}}}}}', LOGIN),
    "npmrc": (f"//registry.acme.io/:_authToken={LOT}", LOT),
    "npmrc, old": (f"_auth={LOGIN}", LOGIN),
    "otpauth": (f"otpauth://totp/Acme:me?secret={drawn('<base3232>')}&issuer=Acme", drawn("<base3232>")),
    "wireguard": (f"[Interface]\nPrivateKey = {B64}\nListenPort = 51820", B64),
    "jwk": (f'{{"kty": "EC", "crv": "P-256", "x": "1", "y": "2", "d": "{URL64}"}}', URL64),
    "cookie": (f"Cookie: theme=dark; sessionid={LOT}; lang=de", LOT),
    "set-cookie": (f"Set-Cookie: sid={LOT}; Path=/; HttpOnly", LOT),
    "vault": (f"X-Vault-Token: {LOT}", LOT),
    "token header": (f"Authorization: token {HEX}{HEX[:8]}", HEX),
    "option": (f"deploy --password {SHORT} --region eu", SHORT),
    "yaml": (f"smtp:\n  password: {SHORT}\n  host: mail", SHORT),
    "json": (f'{{"db_password": "{SHORT}", "port": 5432}}', SHORT),
    "xml": (f"<server><password>{SHORT}</password></server>", SHORT),
    "short name": (f"user: kim\npw: {SHORT}\n", SHORT),
    "ini": (f"[db]\npassword = {SHORT}", SHORT),
    "python": (f'client = Client(api_key="{LOT}", region="eu")', LOT),
    "kubernetes secret": (
        f"data:\n  db-password: {base64.b64encode(SHORT.encode()).decode()}",
        base64.b64encode(SHORT.encode()).decode(),
    ),
    "query": (f"GET https://x.org/a?pwd={LOT}&n=1", LOT),
    "jwt query": (f"https://x.org/a?jwt={LOT}", LOT),
    "env, quoted": (f'export DB_PASSWORD="{SHORT}"', SHORT),
    "with an ampersand": (f"password: {SHORT}&{LOT}", f"{SHORT}&{LOT}"),
    "django": (f"SECRET_KEY = '{DJANGO}'", DJANGO),
    "django, shorter": (f"SECRET_KEY = '{DJANGO[16:-9]}'", DJANGO[16:-9]),
    "with brackets": ("DB_PASSWORD='xK9;mQ2(vL7)pW4z'", "xK9;mQ2(vL7)pW4z"),
    **{
        f"beside {form}": (form.format(SHORT), SHORT)
        for form in (
            "env:\n- name: DB_PASSWORD\n  value: {}\n", 'env:\n  - name: "DB_PASSWORD"\n    value: "{}"\n',
            '{{"name":"DB_PASSWORD","value":"{}"}}', '{{\n  "Key": "DB_PASSWORD",\n  "Value": "{}"\n}}',
            '[{{"ParameterKey": "DbPassword", "ParameterValue": "{}"}}]', '{{"name":"client_secret","default":"{}"}}',
            '<add key="ApiPassword" value="{}"/>', "<add name='db.password' value='{}' />",
            "<property>\n  <name>db.password</name>\n  <value>{}</value>\n</property>",
            "<dict><key>password</key><string>{}</string></dict>", '["DB_PASSWORD","{}"]',
            '[\n  "DB_PASSWORD",\n  "{}"\n]',
            'os.getenv("DB_PASSWORD", "{}")', "define('DB_PASSWORD', '{}');", 'props.setProperty("password", "{}");',
            'variable "db_password" {{ default = "{}" }}', "{{'name': 'DB_PASSWORD', 'value': '{}'}}",
        )
    },
    "beside, a key": (f'{{"name": "x-api-key", "value": "{LOT}"}}', LOT),
    **{
        f"env {name}": (f"DEBUG=1\n{name}={value}\nPORT=80", value)
        for name, value in {
            "DATABASE_PASSWORD": SHORT, "POSTGRES_PASSWORD": SHORT, "MYSQL_ROOT_PASSWORD": SHORT, "SMTP_PASS": SHORT,
            "REDIS_PWD": SHORT, "JWT_SECRET": B64, "SECRET_KEY": LOT, "NEXTAUTH_SECRET": B64, "SESSION_SECRET": HEX,
            "STRIPE_WEBHOOK_SECRET": LOT, "TWILIO_AUTH_TOKEN": HEX, "GITHUB_TOKEN": HEX, "VAULT_TOKEN": LOT,
            "CI_JOB_TOKEN": LOT, "MAPS_API_KEY": LOT, "ACME_APIKEY": HEX, "ENCRYPTION_KEY": B64, "SSH_PRIVATE_KEY": B64,
            "DEPLOY_PRIVATE_KEY": B64, "AWS_SECRET_ACCESS_KEY": drawn("<base6440>"), "AZURE_CLIENT_SECRET": LOT,
            "SENDGRID_API_KEY": LOT, "KEYCLOAK_ADMIN_PASSWORD": SHORT,
        }.items()
    },
}  # fmt: skip
"""Secrets that only their name tells, or what stands around them: a text, and the part that may not be found
anywhere."""


def every_secret() -> list[tuple[str, str, str]]:
    """Return name, text and secret of each row of the tables."""
    rows = [(f"{kind.name} {kind.template}", key, key) for kind in KINDS for key in [drawn_key(kind)]]
    rows += [(f"{name} (labelled)", *of_service(name)) for name in SERVICES]
    rows += [(name, text, secret_of(text)) for name, text in STANDING.items()]
    return rows + [(name, text, secret) for name, (text, secret) in NAMED.items()]


NO_SECRETS = [
    "call_Zw4StpBoaWXljZpGSo3eX1gd toolu_01A09q90qw90lq917835lq9 fc_0549b0842d086f2b0068fde84739bc81938e0c1410333ab44f",
    "resp_0549b0842d086f2b0068fde84739bc8193 msg_abc123def456ghi789jkl012 chatcmpl-9zWwFNcFyMUnqkTrYM5Ds4nQ",
    "0b5c3f4e-1111-4222-8333-444455556666 e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    "commit 009e025ad4106ab333aa0b9dc4f2a884390d134c",
    "gpt-5-2026-01-01 claude-opus-4-20250514 us.anthropic.claude-3-5-haiku-20241022-v1:0 pplx-70b-online",
    "task-0123456789abcdefghij0123 risk-0123456789abcdefghij0123 disk-a0123456789abcdefghij",
    "sk-learn-classification-report-for-2023 sk_learn sk-lego-bricks-of-the-year-number",
    "the key is sk-... or AIza... or hf_transformers_with_long_names_everywhere_in_code",
    (
        "OPENAI_API_KEY=sk-xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx "
        "ghp_xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx sk-your-api-key-goes-here-1234"
    ),
    "AKIAIOSFODNN7EXAMPLE aws_secret_access_key = wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
    (
        "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJzdWIiOiIxMjM0NTY3ODkwIiwibmFtZSI6"
        "IkpvaG4gRG9lIiwiaWF0IjoxNTE2MjM5MDIyfQ."
        "SflKxwRJSMeKKF2QT4fwpMeJf36POk6yJV_adQssw5c"
    ),
    "Bearer authentication is required for this endpoint; a Basic understanding; Bearer YOUR_ACCESS_TOKEN_HERE",
    (
        "postgres://user:password@localhost postgresql://postgres:postgres@localhost:5432/db "
        "redis://:secret@redis:6379 mysql://root:${DB_PASS}@db/x"
    ),
    "https://example.com:8080/path@2 http://localhost:11434/api mailto:me@example.com git@github.com:a/b.git",
    "https://x.org/a?page_token=abcdefgh&signature_version=4&next=1",
    "def login(username: str, password: str, token: str | None = None, api_key: SecretStr = Field(...)) -> None: ...",
    'class Settings: api_key: str = os.environ["OPENAI_API_KEY"]; secret = config.get("client_secret")',
    (
        '{"type": "object", "properties": {"password": {"type": "string"}, '
        '"access_token": {"type": "string", "description": "the token"}}}'
    ),
    "eyJhbGciOiJIUzI1NiJ9 REDACTED [REDACTED-1] sk-[REDACTED-1]",
    "gAAAAABncdef0123456789-_gAAAAABncdef0123456789-_gAAAAABncdef0123456789",
    '"integrity": "sha512-Cf6ZPb4AyxVXYBFjkMcL9BPwzN4bpOWPJhKzTnTCIbTV5xDmFDiGUPMjOSbxPqJyMCQ0SIrJfKUpsB1OLTBIQA=="',
    'hash = "sha256:7a1dd6b8a1d3d4d8a33f8b7c6d7a9d8b7c6d5e4f3a2b1c0d9e8f7a6b5c4d3e2f"  name = "sentry-sdk"',
    'resolved "https://registry.yarnpkg.com/@sentry/core/-/core-7.1.0.tgz#0fa2a1b0a2b3c4d5e6f708192a3b4c5d6e7f8091"',
    (
        "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJ"
        "AAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
    ),
    "linear: 009e025ad4106ab333aa0b9dc4f2a884390d134c, heroku: the quick brown fox, global_value = abcdefgh12345678ij",
    "The assistant answered; tenant-acme asked; myAssistantTokenHandler.refreshAccessToken(request)",
    "x-ratelimit-remaining-tokens: 149984 max_tokens=4096 total_tokens=12 key=value code=200 state=running",
    "import { createClientSecretCredentialProvider2024 } from './auth/createClientSecretCredentialProvider2024'",
    "QWxsIHRoZSB3b3JsZCdzIGEgc3RhZ2UsIGFuZCBhbGwgdGhlIG1lbiBhbmQgd29tZW4gbWVyZWx5IHBsYXllcnM=",
    "spotify:track:4uLU6hMCjMI75M1A2tKUQC, see spotify:album:2up3OPMp9Tb4dAKM2erWXQ; etherscan: 0x1f9840a85d5aF5bf1D1762F9",
    "square = b1c2d3e4f5a6b7c8d9, linear: LIN-2024A7x9Kq3Zt8, Stripe = 4mm8space2mm4line3x9; insomnia, 3am2nights4weeks5x",
    '{"token": "0x1f9840a85d5aF5bf1D1762F925BDADdC4201F984"} token: 0x1f9840a85d5aF5bf1D1762F925BDADdC4201F984',
    "A sentence that ends in class.\nnextMethodNameThatIsLong2 and/or src/main/java/com/acme/Service1.java:42",
]

CODE = [
    "name: DB_PASSWORD, value: see vault",
    '- name: DB_PASSWORD\n  value: "{{ secrets.DB_PASSWORD_2024 }}"\n- name: LOG\n  value: a1b2c3d4e5f6',
    "- name: API_TOKEN\n  valueFrom: {secretKeyRef: {name: shop-2024-v2, key: token}}",
    '{"required": ["password", "api_key", "order_by_2024_v2"], "name": "token", "value": "getToken2024V2"}',
    'os.getenv("DB_PASSWORD", "") os.environ.get("API_KEY", "sk-your-api-key-1234") set("password", "password123")',
    "<name>password.file</name><value>a1B2c3D4e5F6g7</value> <name>db.password</name><value>/etc/shop2/pw9.txt</value>",
    '{"name":"next_token","value":"CAESBgoEEAEYATIGCAEQARgB"} ["page_token","CAESBgoEEAEYATIGCAEQARgB"]',
    '<add key="PasswordMinLength" value="x8Hy2Wq9zz"/> {"Key":"KeyName","Value":"Hx7Qm2Wz9LpT"}',
    'client_secret=os.environ["CLIENT_SECRET"]',
    'access_token=response.json()["access_token"]',
    "refresh_token=credentials.refresh_token,",
    "https://maps.example.com/js?key=${process.env.MAPS_KEY}&v=3",
    'url = f"https://x.org/a?token={self.token_v2}&key={key_2024}"',
    '{"privateKey": "~/.ssh/id_ed25519_work"}',
    "deepseek: deepseek-r1-distill-llama-70b",
    "azure-openai: gpt-4o-2024-08-06-deployment",
    "cohere = command-r-plus-08-2024, mistral: mistral-large-2411-instruct-v1",
    "api_key = settings.OPENAI_API_KEY_V2",
    "password=self.database_password2, token=get_token_v2(client)",
    'api_key: "{{ secrets.OPENAI_API_KEY2 }}"',
    "TOKEN=$(cat /run/secrets/token_2024) PASSWORD=${DB_PASSWORD:-default1}",
    "OPENAI_API_KEY=$OPENAI_API_KEY_2 GITHUB_TOKEN=<your_token_here_1234>",
    "private_key = /etc/ssl/private/server-2024-key.pem",
    "ssh_key: ~/.ssh/id_rsa_2048_work",
    'secret = hmac.new(key1, msg2, "sha256").hexdigest()',
    "token: Optional[AccessTokenV2] = None",
    "const apiKey = process.env.STRIPE_KEY_V2 ?? config.stripeKeyV2;",
    "authToken: request.headers['x-auth-token-v2'],",
    "password = getpass.getpass('Password 2024: ')",
    'headers = {"Authorization": f"Bearer {access_token_v2}"}',
    "Authorization: Bearer ${ACCESS_TOKEN_2024}",
    'export API_TOKEN="$(vault kv get -field=token2 secret/app1)"',
    "secret: projects/acme-prod-2024/secrets/db-password-v2/versions/3",
    "SECRET_NAME=my-app/prod/db-2024-credentials",
    "page_token=CAESBgoEEAEYATIGCAEQARgB next_token: eyJvZmZzZXQiOjEwMH0x",
    '{"_meta":{"progressToken":"V1StGXR8_Z5jdHi6B-myT"}} progressToken: Drmhze6EPcv0fN_81Bj-nA progress_token="9fK2+xQ7/aB1cD4e=="',
    "pad_token='<|endoftext|>' eos_token_id=151643 max_tokens=4096",
    "primary_key=True, cache_key='user:42:profile:v2', sort_key = item_2024_08",
    "public_key: ed25519:6MkhaXgBZDvotDkL5257faiztiGiC2QtKLGpbnnEGta2",
    "idempotency_key=8f14e45f-ceea-467f-a0e5-1c2d3e4f5a6b",
    "password must have 8 characters, 1 digit2 and 1 symbol; secret: see chapter 12b",
    "the token: a1 b2 c3; key: value_1; password: (none)",
    "def connect(host: str, password: str = DEFAULT_PASSWORD_V2) -> Conn1: ...",
    "db_password = config['database']['password_v2']",
    "api_key=self._get_api_key_v2(), client_secret=kwargs.pop('client_secret_v2')",
    "TOKEN_URL=https://auth.acme.io/oauth2/v2/token API_KEY_HEADER=X-Api-Key-V2",
    "token = tokens[i + 1]; key = keys_2d[row][col]; secret = secrets.token_hex(16)",
    "jwt: jsonwebtoken@9.0.2 bearer: oauth2-v2-client",
    "image: registry.acme.io/team/secret-service2:v1.2.3-rc4",
    "model: us.anthropic.claude-3-7-sonnet-20250219-v1:0 key: llama-3.3-70b-versatile",
    "openai: text-embedding-3-large-v2 groq: llama-3.1-8b-instant2",
    "twilio: https://api.twilio.com/2010-04-01/Accounts",
    "stripe: checkout.session.completed.v2, github: actions/checkout@v4.1.2",
    "sentry: sentry-python-2.14.0-release1",
    "datadog: datadog-agent-7.52.1-1.x86_64",
    "const token2 = await auth.getToken({template: 'v2'});",
    'assert token == "abc123", password != "hunter2"',
    "password: {type: string, minLength: 8, pattern: '^[A-Z0-9]{8}'}",
    "secretKeyRef: {name: app-secrets-v2, key: db-password-2024}",
    "valueFrom: {secretKeyRef: {name: prod-db-2024, key: PASSWORD}}",
    'vars.tf: variable "db_password" { type = string default = var.default_password_v2 }',
    "password = data.aws_secretsmanager_secret_version.db2.secret_string",
    "arn:aws:secretsmanager:us-west-2:123456789012:secret:MyTestDatabaseSecret-a1b2c3",
    "credentials: ServiceAccountCredentialsV2 | None",
    "cookie: CookieJar2024 = CookieJar(policy=DefaultCookiePolicy())",
    "Cookie: theme=dark-mode-2; lang=de-DE; consent=accepted-2024",
    "if (secret.length < 32) throw new Error('secret2 too short');",
    "auth = HTTPBasicAuth(user1, password2)",
    "password = 'get_v2(db1)[x9];int2str(k7,p3)'",
    '"token": "<TOKEN>", "api_key": "YOUR_API_KEY_2024", "password": "changeme123"',
    "jdbc:postgresql://localhost:5432/app?user=postgres&password=postgres",
    "Server=localhost;User Id=sa;Password=${SA_PASSWORD};",
    "machine example.com login user password password",
    "bearer_token = load_bearer_token_from_file('token_v2.txt')",
    "API_KEY = keyring.get_password('service2', 'user1')",
    "--token-file /run/secrets/token2 --password-stdin --key-file key_2024.pem",
    "signing_key: alias/prod-signing-key-2024",
    "token_type=bearer&scope=read2&state=running3&key=name_1&code=200",
    "password reset link: https://acme.io/reset2 valid for 24h0m0s",
    "secret santa 2024: Anna1 gives to Ben2",
    "access_key_id = var.access_key_id_v2",
    'process.env["API_KEY_V2"] || readFileSync("./key_v2.txt")',
    "spring.datasource.password=@db.password.v2@ token=%TOKEN_V2%",
    "password: !vault |  $ANSIBLE_VAULT;1.1;AES256",
    'ENV API_KEY="" ARG TOKEN_V2 RUN --mount=type=secret,id=key2',
    "hash: sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    "password_hash = $2b$12$KIXQ4S6oWqg8m8G9h3nU6eO3bE7kqk0v0V1Yw1xk9H8sQm1YbWm3e",
]
"""Lines of code, templates, paths, names of models: what only looks like a secret."""
