"""Classes: abstract ones, members, descriptors, classes that change or are made in a step."""
