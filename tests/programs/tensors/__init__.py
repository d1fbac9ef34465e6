"""Memory of tensors: strides, views, shared memory, in-place and out= forms, results of a step."""
