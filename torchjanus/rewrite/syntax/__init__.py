"""What rewriting needs of source: scopes, sites, the walk over a function's tree, and differences of interpreters."""
