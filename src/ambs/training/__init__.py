"""Training, and the files it leaves behind."""
