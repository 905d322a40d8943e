"""What happened in an episode and why, as files that can be looked at: decisions, futures, counterfactuals, the truth."""
