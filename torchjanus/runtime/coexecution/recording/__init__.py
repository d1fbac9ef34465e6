"""Recording a call by what torch is called with: events, tensors by number, arrays, placeholders."""
