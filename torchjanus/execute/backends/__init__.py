"""Back ends: what runs a staged graph, chosen by name."""
