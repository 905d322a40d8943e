"""Small programs made of all the rest: demo, quickstart, doctor, self-test."""
