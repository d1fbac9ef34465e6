"""What rewriting asks of source: scopes, sites, the walk over a function's tree, and where interpreters differ."""
