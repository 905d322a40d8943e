"""Deciding in an environment with what was learned: adapter, act, agent, evaluation."""
