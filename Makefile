# What each of these does is in .ci/bootstrap, in vllm_node/ and in tests/; here is only the order.
.DEFAULT_GOAL := help
.PHONY: help demo test test-fast lint lint-fast bench pictures clean bootstrap
# Many tests wait for a program of theirs, so two workers share a core.
PARALLEL = -n $$((2 * $$(getconf _NPROCESSORS_ONLN))) --dist worksteal
export PATH := $(CURDIR)/.venv/bin:$(PATH)

help: ## Say what there is.
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 20

demo: bootstrap ## Boot a lab node, bring it up, show the answer; without a lab, render the example inventory.
	@python -m vllm_node.demo

test: bootstrap lint ## Lint and run all tests; those that need a lab node are skipped, with the reason, without one.
	@vllm-node lab check --install || echo "tests/node and tests/real are not run: no lab can boot here (see above)"
	@python -m pytest -q $(PARALLEL) tests/unit tests/standins tests/plays tests/bundle
	@python -m tests.browser.install || true
	@python -m pytest tests/rules tests/load tests/browser
	@python -m pytest -n 2 --dist loadfile tests/registry tests/node
	@python -m pytest -n 2 --dist loadfile tests/real

test-fast: bootstrap lint-fast ## The tests that need no node, ruff, mypy and yamllint; not ansible-lint, which is slow.
	@python -m pytest -q $(PARALLEL) tests/unit

lint: bootstrap lint-fast ## ruff, mypy, yamllint, ansible-lint.
	ansible-lint -q

lint-fast: bootstrap
	ruff check --quiet
	mypy --no-error-summary
	yamllint --strict .

bench: bootstrap ## Time site.yml against a shell script that does the same; weigh what many nodes cost a central store; load generators; hashing; push and load; both load generators on a node.
	@python -m tests.bench.site_against_shell
	@python -m tests.bench.central_store
	@python -m tests.bench.load_generators
	@python -m tests.bench.hashing
	@python -m tests.bench.push_and_load
	@python -m pytest -q -rs tests/bench/test_cross_check.py

pictures: bootstrap ## Draw each dashboard into docs/images, from a lab node under a small load.
	@python -m tests.real.pictures

clean: ## Remove what these have made in this folder. Lab: vllm-node lab down.
	rm -rf .venv .cache .ansible .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist rendered

bootstrap:
	@.ci/bootstrap
