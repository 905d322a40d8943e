"""Point and Car seeking goals among hazards and vases: Safety Gym's tasks, built from scratch on plain MuJoCo."""
