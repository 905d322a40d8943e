"""The world model: DreamerV3's recurrent state-space model with label heads."""
