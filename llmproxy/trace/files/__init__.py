"""Trace files: the cassette of spans, read and written, and OpenTelemetry's form of it."""
