"""The mitmproxy addon: ``mitmdump -s "$(llmproxy addon)" --set llmproxy_mode=record``.

Our options are mitmproxy's, named ``llmproxy_<name>``. If any of them is invalid, all connections are denied: an addon
that merely failed to load would let every request go on to the real provider.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from mitmproxy import ctx
from mitmproxy.addonmanager import Loader
from mitmproxy.proxy import mode_specs

from llmproxy.advice import SuggestedCommandTemplate
from llmproxy.calls_and_totals import Call, Totals
from llmproxy.core.providers.provider_table import PROVIDERS
from llmproxy.core.providers.routing import REST
from llmproxy.core.providers.upstreams_and_rate_limits import add_env_upstreams
from llmproxy.core.traffic.interaction import format_host
from llmproxy.errors import LLMProxyError, SettingsError, ensure_program_prefix
from llmproxy.mitm.client_layers import NextLayerChooser
from llmproxy.mitm.idle_connections_and_resets import LowDescriptorConnectionCloser
from llmproxy.mitm.interception import HttpConnectHandler
from llmproxy.mitm.recorder import RecordingAddon, deny_server_connection
from llmproxy.mitm.serve import (
    OPTIONS,
    ProxyContextAndJournal,
    build_origin_guard,
    build_proxy_context_and_journal,
    drain_client_connections,
)
from llmproxy.report.proxy_console import format_console_call_line, format_proxy_call_totals
from llmproxy.settings import SettingSource, SettingSourceKind, list_options_of_settings, load

log = logging.getLogger(__name__)

OURS_TO_SET = {name: value for name, value in OPTIONS.items() if name not in ("mode", "tcp_timeout")} | {"http2": False}
"""mitmproxy's own handler opens at most five connections to a host: a sixth stream would wait for ever."""
NOT_OURS = frozenset({"host", "port", "quiet", "verbose", "client_cert"})
"""Options that mitmproxy defines itself."""


def parse_mitmproxy_mode_upstreams(modes: Sequence[str]) -> dict[str, tuple[str, SettingSource]]:
    """Return the upstream of mitmproxy's mode: name -> (URL, source). Raises SettingsError: ambiguous."""
    specs = [mode_specs.ProxyMode.parse(each) for each in modes]
    if all(isinstance(spec, mode_specs.RegularMode) for spec in specs):
        return {}
    spec = specs[0]
    if len(specs) > 1 or not isinstance(spec, mode_specs.ReverseMode) or spec.scheme not in ("http", "https"):
        hint = "Use --mode regular, or --mode reverse:URL alone; anything else runs as `llmproxy start --forward`."
        raise SettingsError(f"llmproxy cannot serve mitmproxy's mode {' '.join(modes)}.", hint=hint)
    host, port = spec.address[:2]
    url = f"{spec.scheme}://{format_host(spec.scheme, host, port)}"
    return dict.fromkeys(
        (*PROVIDERS, REST), (url, SettingSource(SettingSourceKind.PROGRAM, f"mitmproxy --mode {spec.full_spec}"))
    )


class DenyAllOnFailedStart:
    server_connect = staticmethod(deny_server_connection)


class MitmdumpAddon:
    def __init__(self) -> None:
        self.addons: list[object] = [DenyAllOnFailedStart()]
        self._begun = False
        self._built: ProxyContextAndJournal | None = None
        self._totals = Totals()

    def load(self, loader: Loader) -> None:
        for option in list_options_of_settings():
            if option.has_flag and option.name not in NOT_OURS:
                loader.add_option(f"llmproxy_{option.name}", str, "", option.help)

    def configure(self, updated: set[str]) -> None:
        if self._begun:
            if "mode" in updated:
                log.error("llmproxy: mitmproxy's mode was changed: nothing passes until it is started again")
                self.addons = [DenyAllOnFailedStart()]
            elif any(name.startswith("llmproxy_") for name in updated):
                log.warning("llmproxy: options are read once, at the start; restart mitmproxy to change them")
            return
        self._begun = True  # what we set ourselves comes back here
        try:
            ctx.options.update(**OURS_TO_SET)  # type: ignore[no-untyped-call]
            given = load(self._read_options(), os.environ, Path.cwd())
            given = given.add_unset_upstreams(parse_mitmproxy_mode_upstreams(ctx.options.mode))
            loaded = add_env_upstreams(given, os.environ)
            start = SuggestedCommandTemplate('mitmdump -s "$(llmproxy addon)"', in_mitmproxy=True)
            self._built = build_proxy_context_and_journal(loaded, self._log_call, start)
        except LLMProxyError as error:
            log.error("%s", ensure_program_prefix(error))  # noqa: TRY400 - its text says it all
            if ctx.master.addons.get("errorcheck") is None:  # type: ignore[no-untyped-call]
                ctx.master.shutdown()  # type: ignore[no-untyped-call]
            return  # with it, an error at the start ends mitmproxy with status 1
        proxy = self._built.proxy
        proxy.forward, proxy.guard = True, build_origin_guard(loaded.settings, ctx.options.listen_host)
        proxy.sockets = LowDescriptorConnectionCloser(
            lambda: ctx.master.addons.get("proxyserver")  # type: ignore[no-untyped-call]
        )
        self.addons = [
            NextLayerChooser(proxy, http2=False),
            HttpConnectHandler(proxy, forward=True),
            RecordingAddon(proxy),
        ]
        for note in self._built.notes:
            log.warning("llmproxy: %s", note)
        config = proxy.engine.config
        log.info("llmproxy: mode %s, store %s, cassette %s", config.mode, config.store, config.cassette)

    def _read_options(self) -> Mapping[str, object]:
        ours = (option for option in list_options_of_settings() if option.name not in NOT_OURS)
        given = ((option, getattr(ctx.options, f"llmproxy_{option.name}", "")) for option in ours)
        return {option.name: value.split(",") if option.repeat else value for option, value in given if value}

    def _log_call(self, call: Call) -> None:
        self._totals.add(call)
        log.info("%s", format_console_call_line(call))

    async def done(self) -> None:
        if self._built is None:
            return
        server = ctx.master.addons.get("proxyserver")  # type: ignore[no-untyped-call]
        await drain_client_connections(self._built.proxy, server)
        unused, notes = await self._built.close_and_list_unused()
        for text in notes:
            log.warning("llmproxy: %s", text)
        for text in format_proxy_call_totals(self._totals, unused):
            log.info("llmproxy: %s", text)
