"""What a GPU gains by one launch a step: equality, times, waits of the host, idle time of the device, memory."""
