"""Objects: attributes, identity, lifetimes, new objects that leave a step, unusual object models."""
