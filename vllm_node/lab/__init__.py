"""A disposable lab on this machine: real systemd, real podman, a real registry, real vLLM; only GPUs are stood in for."""
