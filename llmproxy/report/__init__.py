"""Handlers of the event stream: console, JUnit, HTML, JSON, GitHub, LangWatch. Work emits events; handlers print."""
