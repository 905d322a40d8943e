"""Does a trained shield's imagination foresee danger? Measured on fresh layouts against what happened there."""
