"""What containers from before the call and of the call hold, as the run sees them."""
