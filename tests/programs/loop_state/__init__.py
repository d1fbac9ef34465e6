"""What the iterations of a loop write, carry and do: tensors, attributes, effects, modes, training."""
