"""Exactly-once sinks for Spark Structured Streaming."""

__version__ = "0.1.0"
