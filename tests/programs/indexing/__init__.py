"""Subscripts, slices, masks and assignments whose positions or sizes tensors or numbers decide."""
