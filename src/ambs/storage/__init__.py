"""What lies on the disk: files that survive crashes, arrays, checkpoints, run folders. No learning code."""
