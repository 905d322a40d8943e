"""Safety Gym's Goal tasks on plain MuJoCo."""
