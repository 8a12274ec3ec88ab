# What each of these does is in .ci/bootstrap, in vllm_node/ and in tests/; here is only the order.
.DEFAULT_GOAL := help
.PHONY: help demo test test-fast test-long lint lint-fast bench pictures clean bootstrap
# A worker a core; where tests wait for programs of theirs, two share one.
PARALLEL = -n $$(getconf _NPROCESSORS_ONLN) --dist worksteal
SHARED = -n $$((2 * $$(getconf _NPROCESSORS_ONLN))) --dist worksteal
# Two files at a time, each worker with a lab of its own; the long ones come first.
TWO_LABS = -n 2 --dist loadfile --no-loadscope-reorder
export PATH := $(CURDIR)/.venv/bin:$(PATH)

help: ## Say what there is.
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 20

demo: bootstrap ## Boot a lab node, bring it up, show the answer; without a lab, render the example inventory.
	@python -m vllm_node.demo

test: bootstrap lint ## Lint and run all tests; those that need a lab node are skipped, with the reason, without one.
	@vllm-node lab check --install || echo "tests/node and tests/real are not run: no lab can boot here (see above)"
	@python -m tests.browser.install || true
	@python -m pytest -q $(PARALLEL) tests/unit tests/reports tests/rules tests/browser
	@python -m pytest -q $(SHARED) tests/programs tests/standins tests/plays tests/bundle
	@python -m pytest tests/load tests/gateway
	@python -m pytest $(TWO_LABS) tests/real tests/node tests/registry

test-long: bootstrap ## What takes too long for each change: the way over the gap, upgrades, firewall, Molecule, a life on two podmans.
	@vllm-node lab check --install
	@VLLM_NODE_LIFE=5.4,5.8 python -m pytest $(TWO_LABS) tests/real/test_life.py tests/long

test-fast: bootstrap lint-fast ## The tests that need no node, ruff, mypy and yamllint; not ansible-lint, which is slow.
	@python -m pytest -q $(PARALLEL) --hypothesis-profile=fast tests/unit

lint: bootstrap lint-fast ## ruff, mypy, yamllint, ansible-lint.
	ansible-lint -q

lint-fast: bootstrap
	ruff check --quiet
	mypy --no-error-summary
	yamllint --strict .

bench: bootstrap ## Time site.yml against a shell script that does the same; weigh what many nodes cost a central store; load generators; hashing; push and load; the gateway; both load generators on a node.
	@python -m tests.bench.site_against_shell
	@python -m tests.bench.central_store
	@python -m tests.bench.load_generators
	@python -m tests.bench.hashing
	@python -m tests.bench.push_and_load
	@python -m tests.bench.gateway
	@python -m pytest -q -rs tests/bench/test_cross_check.py

pictures: bootstrap ## Draw each dashboard into docs/images, from a lab node under a small load.
	@python -m tests.real.pictures

clean: ## Remove what these have made in this folder. Lab: vllm-node lab down.
	rm -rf .venv .cache .ansible .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist rendered

bootstrap:
	@.ci/bootstrap
