"""Rewrites of traces that replace each iteration of a switched loop by one switch operation."""
