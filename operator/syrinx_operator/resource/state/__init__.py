"""What the operator keeps of a pipeline: its status, and the states of canary and tuner."""
