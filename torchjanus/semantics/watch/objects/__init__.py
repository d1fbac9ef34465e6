"""Watch operations on objects: values, attributes, subscripts, class lookups, errors, and what leaves the call."""
