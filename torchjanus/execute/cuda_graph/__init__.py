"""Whole steps captured as CUDA graphs: one launch a call."""
