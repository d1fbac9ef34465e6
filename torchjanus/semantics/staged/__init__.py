"""Staging: a program runs on values that are not known yet, and what it does with them becomes a TraceGraph."""
