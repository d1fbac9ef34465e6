"""Rewrites traces so that runs of different trip counts are one path: sources, carried state, outputs."""
