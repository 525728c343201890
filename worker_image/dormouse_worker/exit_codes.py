"""What the exit code of an engine process says to the front, beside 0 (asked to end) and 1 (a crash)."""

EXIT_BROKEN = 4  # forward passes fail: a new process may compute again, so the front starts one
EXIT_GPU_UNHEALTHY = 5  # the device is ill, as its last words say: the front starts nothing on the same device
