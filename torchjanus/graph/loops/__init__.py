"""Loops of a step: what their iterations have in common, and one body for any trip count."""
