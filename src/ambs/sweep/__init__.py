"""Many runs: what they are, what is there of them, and running the rest, on this machine or on many."""
