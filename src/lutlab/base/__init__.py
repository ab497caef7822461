"""The ground: what every other folder stands on, and nothing of which imports another folder of lutlab."""
