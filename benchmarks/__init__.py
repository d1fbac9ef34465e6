"""Measurements, through the public API only. Each module is a command: ``python -m benchmarks.first_light``."""
