"""A watched run as a tree: values with versions, blocks, loops, switches, calls (docs/design/tracegraph.md)."""
