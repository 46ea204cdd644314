"""Handlers of the event stream: the console, and later JUnit, JSON, HTML. Work emits events; only reporters print."""
