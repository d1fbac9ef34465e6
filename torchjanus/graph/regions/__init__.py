"""Regions: loop bodies and arms of switches as differentiable operators of torch; partition, saved values, sizes."""
