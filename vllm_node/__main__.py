"""`python -m vllm_node` is `vllm-node`."""

from vllm_node.cli import main

if __name__ == "__main__":
    main()
