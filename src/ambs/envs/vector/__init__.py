"""Many environments at once: in threads, in processes, or one after the other."""
