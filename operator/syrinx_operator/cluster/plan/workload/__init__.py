"""The workloads of the stages: their pods, and what these need."""
