"""Data-parallel training by several processes of this machine: eager and speculated, call by call."""
