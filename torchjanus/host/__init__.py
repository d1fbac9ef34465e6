"""The Python that is generated around a graph: guards, reads of the heap, deferred writes, the journal of
extern calls."""
