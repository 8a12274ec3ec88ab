"""A disposable lab on this machine: real systemd, podman, registry and vLLM; only GPUs are stood in for."""
