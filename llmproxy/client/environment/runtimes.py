"""What each runtime reads, as a table: for `llmproxy doctor`, which says what to do about a client that went past the proxy.

Measured with clean environments (WIRE.md 4.1); entries that were read in documentation only say "documented".
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Runtime:
    """One runtime, and what makes its clients use the proxy."""

    name: str
    programs: str
    """Pattern of the names of its programs."""
    base_url: str
    """What to do by base URL."""
    intercept: str
    """What to do by interception."""


RUNTIMES = (
    Runtime(
        "Python", r"python[0-9.]*|pypy[0-9.]*|pytest|uv|uvx|uvicorn|gunicorn|celery|poetry|tox|nox",
        "SDKs read the base URL when a client is made, modules often when they are imported: set it before Python starts. "
        "A base_url= argument, and load_dotenv(override=True), win over it.",
        "httpx and the SDKs read HTTPS_PROXY and SSL_CERT_FILE; requests and boto3 REQUESTS_CA_BUNDLE and AWS_CA_BUNDLE. Past it go: "
        "aiohttp without trust_env=True, a urllib3 PoolManager, httpx with trust_env=False or a transport of its own.",
    ),
    Runtime(
        "Node", r"node|nodejs|npm|npx|pnpm|yarn|tsx|ts-node|vitest|jest|next|vite",
        "openai, @anthropic-ai/sdk, @google/genai and the AI SDK read it when they are loaded. @ai-sdk/google and Ollama's client read "
        "none: pass baseURL (host) in code. The AWS SDK speaks HTTP/2 to http endpoints: use an HTTP/1.1 request handler.",
        "Node 24 (and 22.21) goes through HTTPS_PROXY only with NODE_USE_ENV_PROXY=1, an older one by the file that NODE_OPTIONS requires; both "
        "trust NODE_EXTRA_CA_CERTS (llmproxy run --intercept sets all three). The AWS SDK's HTTP/2 handler ignores it.",
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
        "HTTPS_PROXY is read, but never for 127.0.0.1. SSL_CERT_FILE works on Linux only: elsewhere put the certificate into the "
        "system's store. (documented)",
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
        "Claude Code or Codex", r"claude|codex|gemini",
        "Claude Code reads ANTHROPIC_BASE_URL, the Gemini CLI GOOGLE_GEMINI_BASE_URL with an API key. Codex has openai_base_url in "
        "~/.codex/config.toml.",
        "All read HTTPS_PROXY; Claude Code trusts NODE_EXTRA_CA_CERTS, Codex CODEX_CA_CERTIFICATE. Signed in with an account, "
        "they can only be intercepted. (documented)",
    ),
    Runtime(
        "a container or another machine", r"docker|docker-compose|podman|kubectl|ssh|sudo|su|vagrant|systemd-run",
        "It does not inherit variables, and its 127.0.0.1 is its own: start the proxy with --host 0.0.0.0 and a token, and pass "
        "`llmproxy env --url http://host.docker.internal:8080 --format dotenv` with --env-file.",
        "The same, and the certificate must be mounted.",
    ),
)  # fmt: skip

OTHER = Runtime(
    "this program", r".*",
    "If it reads no base-URL variable, look for a setting or an argument of that name.",
    "If it reads no proxy variable (Rust programs with built-in certificates cannot be told either), only its base URL is left.",
)  # fmt: skip


def runtime_of(program: str) -> Runtime:
    """Return whose program this is, by the last part of its path."""
    name = program.replace("\\", "/").rpartition("/")[2].lower().removesuffix(".exe")
    return next((runtime for runtime in RUNTIMES if re.fullmatch(runtime.programs, name)), OTHER)
