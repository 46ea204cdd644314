"""Tables of runtimes (for `llmproxy doctor`) and of clients that read no base-URL variable (for `llmproxy run`): how to
make them use the proxy. Measured (WIRE.md 4.1); entries taken from documentation only say "documented".
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KnownClient:
    name: str
    advice: str
    program: str = ""
    """Pattern of a word of the command."""
    package: str = ""
    """Package name on npm or PyPI, as in a project's file."""
    configured: str = ""
    """Pattern of a word of the command that shows that it is already configured."""


CLIENTS = (
    KnownClient(
        "Codex",
        "it reads no variable: codex exec -c model_provider=x -c model_providers.x.name=x -c "
        "model_providers.x.base_url="
        '"$OPENAI_BASE_URL" -c model_providers.x.env_key=OPENAI_API_KEY -c model_providers.x.wire_api=responses ... '
        "(in `sh -c '...'`, so that the variable is the command's)",
        program=r"codex(\.js|\.exe)?",
        configured=r"base_url",
    ),
    KnownClient(
        "pi",
        'it reads no variable: {"providers": {"openai": {"baseUrl": "..."}}} in ~/.pi/agent/models.json, with what '
        "$OPENAI_BASE_URL says in `sh -c '...'`",
        package="@mariozechner/pi-coding-agent",
    ),
    KnownClient(
        "@ai-sdk/google",
        "it reads no variable: createGoogleGenerativeAI({ baseURL: process.env.GOOGLE_GEMINI_BASE_URL && "
        "process.env.GOOGLE_GEMINI_BASE_URL + '/v1beta' })",
        package="@ai-sdk/google",
    ),
    KnownClient(
        "Mistral's client",
        'it reads no variable: pass server_url (serverURL in JavaScript), os.environ["LLMPROXY_URL"] + "/mistral"',
        package="mistralai",
    ),
    KnownClient(
        "Ollama's JavaScript client",
        "it reads no variable: new Ollama({ host: process.env.OLLAMA_HOST })",
        package="ollama",
    ),
)  # fmt: skip

_RUNS = r"(?:^|[;|&(]\s*|\b(?:npx|exec|env|nice)\s+)(?:[^\s;|&()]*[/\\])?(?:{0})(?=\s|$)"
"""Pattern of the beginning of a command: a prompt may contain the name as well."""
_PACKAGE = r"(?<![\w@/.-]){0}(?![\w/.-])"
PROJECTS = ("package.json", "pyproject.toml", "requirements.txt")


def find_clients(command: Sequence[str], files: Mapping[str, str]) -> list[KnownClient]:
    """Return the known clients in a command, or in its folder's project (name -> text of PROJECTS)."""
    words = [word for each in command for word in re.split(r"[\s;|&()'\"]+", each)]
    names = {word.replace("\\", "/").rpartition("/")[2] for word in words}
    return [
        client
        for client in CLIENTS
        if (client.program and any(re.fullmatch(client.program, name) for name in names))
        or (client.package and re.search(_PACKAGE.format(re.escape(client.package)), "\n".join(files.values())))
    ]


def is_configured_in_command(client: KnownClient, command: Sequence[str]) -> bool:
    return bool(client.configured) and any(re.search(client.configured, each) for each in command)


def list_bypass_warnings(command: Sequence[str]) -> list[str]:
    shell = len(command) > 2 and command[1] == "-c"
    text = command[2] if shell else " ".join(command[:2])
    known = [
        each
        for each in CLIENTS
        if each.program and re.search(_RUNS.format(each.program), text) and not is_configured_in_command(each, command)
    ]
    return [f"llmproxy: {each.name} will go past the proxy, to its provider: {each.advice}" for each in known]


@dataclass(frozen=True, slots=True)
class Runtime:
    name: str
    programs: str
    base_url: str
    intercept: str


RUNTIMES = (
    Runtime(
        "Python", r"python[0-9.]*|pypy[0-9.]*|pytest|uv|uvx|uvicorn|gunicorn|celery|poetry|tox|nox",
        "SDKs read the base URL when a client is made, modules often when they are imported: set it before Python "
        "starts. A base_url= argument, and load_dotenv(override=True), win over it.",
        "httpx and the SDKs read HTTPS_PROXY and SSL_CERT_FILE; requests and boto3 REQUESTS_CA_BUNDLE and "
        "AWS_CA_BUNDLE. Past it go: aiohttp without trust_env=True, a urllib3 PoolManager, httpx with trust_env=False "
        "or a transport of its own.",
    ),
    Runtime(
        "Node", r"node|nodejs|npm|npx|pnpm|yarn|tsx|ts-node|vitest|jest|next|vite",
        "openai, @anthropic-ai/sdk, @google/genai and the AI SDK read it when they are loaded. @ai-sdk/google and "
        "Ollama's client read none: pass baseURL (host) in code.",
        "Node 24 (and 22.21) goes through HTTPS_PROXY only with NODE_USE_ENV_PROXY=1, an older one by the file that "
        "NODE_OPTIONS requires; both trust NODE_EXTRA_CA_CERTS (llmproxy run --intercept sets all three). The AWS "
        "SDK's HTTP/2 handler ignores it.",
    ),
    Runtime(
        "Java", r"java|javac|mvn|mvnw|gradle|gradlew|sbt|kotlin",
        "openai-java reads OPENAI_BASE_URL only through fromEnv(); else -Dopenai.baseUrl, or baseUrl() in code.",
        "The JVM reads no proxy variable: -Dhttps.proxyHost and -Dhttps.proxyPort in JAVA_TOOL_OPTIONS, with "
        "-Djavax.net.ssl.trustStore (llmproxy run --intercept sets them; a build tool that forks tests may drop them).",
    ),
    Runtime(
        "Go", r"go|gopls",
        "openai-go and genai read their base-URL variables; others take option.WithBaseURL in code.",
        "HTTPS_PROXY is read, but never for 127.0.0.1. SSL_CERT_FILE works on Linux only: elsewhere put the "
        "certificate into the system's store. (documented)",
    ),
    Runtime(
        "Ruby", r"ruby[0-9.]*|irb|rake|bundle|rspec|rails",
        "ruby-openai takes uri_base in code; the official gem reads OPENAI_BASE_URL.",
        "Net::HTTP reads https_proxy and SSL_CERT_FILE. (documented)",
    ),
    Runtime(
        ".NET", r"dotnet|pwsh",
        "Pass the endpoint in code: OpenAIClientOptions.Endpoint.",
        "HTTPS_PROXY is read; SSL_CERT_FILE on Linux, elsewhere the system's store. (documented)",
    ),
    Runtime(
        "curl", r"curl|wget",
        'Write the variable into the address: curl "$OPENAI_BASE_URL/chat/completions".',
        "HTTPS_PROXY and CURL_CA_BUNDLE are read, unless --noproxy or --cacert says otherwise.",
    ),
    Runtime(
        "Deno or Bun", r"deno|bun|bunx",
        "npm packages read the same variables as under Node; Deno needs --allow-env for it.",
        "HTTPS_PROXY is read; Deno trusts DENO_CERT, Bun NODE_EXTRA_CA_CERTS. (documented)",
    ),
    Runtime(
        "a coding agent", r"claude|codex|copilot|gemini|qwen",
        "Claude Code reads ANTHROPIC_BASE_URL, the Gemini CLI GOOGLE_GEMINI_BASE_URL with an API key, Copilot CLI "
        "COPILOT_PROVIDER_BASE_URL, Qwen Code OPENAI_BASE_URL. Codex has openai_base_url in ~/.codex/config.toml.",
        "All read HTTPS_PROXY; Claude Code trusts NODE_EXTRA_CA_CERTS, Codex CODEX_CA_CERTIFICATE. Signed in with an "
        "account, they can only be intercepted. (documented)",
    ),
    Runtime(
        "a container or another machine", r"docker|docker-compose|podman|kubectl|ssh|sudo|su|vagrant|systemd-run",
        "It does not inherit variables, and its 127.0.0.1 is its own: start the proxy with --host 0.0.0.0 and a "
        "token, and pass `llmproxy env --url http://host.docker.internal:8080 --format dotenv` with --env-file.",
        "The same, and the certificate must be mounted.",
    ),
)  # fmt: skip

OTHER = Runtime(
    "this program", r".*",
    "If it reads no base-URL variable, look for a setting or an argument of that name.",
    "If it reads no proxy variable (Rust programs with built-in certificates cannot be told either), only its base URL "
    "is left.",
)  # fmt: skip


def find_runtime(program: str) -> Runtime:
    name = program.replace("\\", "/").rpartition("/")[2].lower().removesuffix(".exe")
    return next((runtime for runtime in RUNTIMES if re.fullmatch(runtime.programs, name)), OTHER)
