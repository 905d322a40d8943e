"""Task policy, backup policy, critics and the penalties that teach the task policy about safety."""
