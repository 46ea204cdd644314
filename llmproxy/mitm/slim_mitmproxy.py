"""Lighter imports of mitmproxy, without the parts that our own server never uses, which are most of them.

    mitmproxy.addons               its `__init__` imports every addon, and with them flask, ldap3 and more
    mitmproxy.proxy.layers.quic    QUIC and HTTP/3: aioquic, service_identity, attrs; classes without instances
    ruamel.yaml                    for its configuration file, which we do not read
    pyparsing                      for commands typed into its console: 37 ms of processor, with unittest behind it

Access to anything else in them runs the real code at that moment. If mitmproxy is already imported, as in ``mitmdump
-s``, nothing is changed.
"""

from __future__ import annotations

import importlib
import sys
from importlib.util import find_spec, module_from_spec
from types import ModuleType
from typing import Any

ADDONS = "mitmproxy.addons"
YAML = "ruamel.yaml"
PARSER = "pyparsing"
LEXER = "mitmproxy.command_lexer"
QUIC = ("mitmproxy.proxy.layers.quic", "mitmproxy.proxy.layers.http._http3")


class LazyModule(ModuleType):
    def __getattr__(self, name: str) -> object:
        """Import a submodule, or run the module's code, at the first access to one of its names."""
        if name.startswith("__"):
            raise AttributeError(name)
        if "__path__" in vars(self) and find_spec(f"{self.__name__}.{name}") is not None:
            return importlib.import_module(f"{self.__name__}.{name}")
        if (spec := self.__spec__) is None or spec.loader is None:
            raise AttributeError(name)
        self.__class__ = ModuleType  # type: ignore[assignment]  # from now on it is what it would have been
        spec.loader.exec_module(self)
        return getattr(self, name)


class QuicClassStub:
    def __init__(self, *_args: object, **_named: object) -> None:
        raise RuntimeError(f"{type(self).__name__}: llmproxy runs mitmproxy without QUIC and HTTP/3")


class QuicModuleStub(ModuleType):
    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        made = type(name, (QuicClassStub,), {"__module__": self.__name__})
        setattr(self, name, made)
        return made


def slim_mitmproxy() -> bool:
    """Install the lighter imports unless mitmproxy is imported already; returns whether they are installed."""
    if ADDONS in sys.modules or "mitmproxy.proxy.layers" in sys.modules:
        return isinstance(sys.modules.get(QUIC[0]), QuicModuleStub)
    if not _defer_import(ADDONS):
        return False
    _defer_import(YAML)
    if _defer_import(PARSER) and _defer_import(LEXER):  # imported by name where commands are kept
        sys.modules[LEXER].__dict__.setdefault("unquote", _unquote_with_lazy_lexer)
    for name in QUIC:
        sys.modules[name] = QuicModuleStub(name)
    return True


def _unquote_with_lazy_lexer(text: str) -> str:
    lexer: Any = sys.modules[LEXER]
    _ = lexer.expr  # the module's own code runs, and defines the real one
    return str(lexer.unquote(text))


def _defer_import(name: str) -> bool:
    if name in sys.modules:
        return True
    try:
        spec = find_spec(name)
    except ModuleNotFoundError:  # its parent is missing: said by whoever imports it next
        return False
    if spec is None or spec.loader is None:
        return False
    package = module_from_spec(spec)
    package.__class__ = LazyModule
    sys.modules[name] = package
    parent, _, child = name.rpartition(".")
    if parent:
        setattr(sys.modules[parent], child, package)
    return True
