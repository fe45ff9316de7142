"""A pipeline on Kubernetes: pure plans (`plan`, `rollout`, `status`) and the thin shell that carries them out."""
