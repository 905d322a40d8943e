"""What happened, and how sure we are: statistics and pictures from recorded results; imports no learning code."""
