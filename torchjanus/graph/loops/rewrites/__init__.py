"""Rewrites of recorded traces that make the iterations of a loop alike, and the folding of loops."""
