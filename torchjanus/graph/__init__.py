"""From traces to one ATen graph. The only package that imports torch.fx."""
