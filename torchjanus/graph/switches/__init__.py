"""Switches: loops and branches whose path depends on tensors; the arms, their effects, and one program for all arms."""
