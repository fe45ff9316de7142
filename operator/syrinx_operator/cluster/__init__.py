"""TTSPipelines on Kubernetes: pure planning and status (`plan`, `conditions`, `status`), and the operator process."""
