# MXQ. The commands run from the tree as they are: nothing is built.
#
#   make check          unit, cli, meta, and the quick tests of crash: every commit
#   make check-crash    all of crash, and what is marked slow elsewhere: minutes
#   make check-engines  inside Slurm, Grid Engine, HTCondor, GNU parallel, at
#   make check-scale    many jobs
#   make long-check     random histories, power cuts, NFS (HACKING.md: what it needs)
#   make check-installed  the tests of cli, on an installed copy; for another Python
#                       PYTHON=/path/python3.9 VENV=build/venv-3.9
#   make lint           source, pages, shell
#   make completions    contrib/completions, from the option tables
#   make bench          the table of doc/BENCHMARKS.md
#   make install        PREFIX=/usr/local DESTDIR= PYTHON=/usr/bin/python3
#   make uninstall      removes exactly what install put there
#   make deb            a Debian package, in DEB=build/deb
#   make clean          removes what the others made here
#   make help           this
#
# One test: make test T='tests/cli/test_reap.py -k passes_status'

PYTHON = /usr/bin/python3
PREFIX = /usr/local
DESTDIR =
VENV = .venv
DEB = build/deb
# Test processes at once; 0 for none beside pytest itself (needed for --pdb).
JOBS = 2

pytest = JOBS=$(JOBS) VENV=$(VENV) tools/run-tests
install = $(PYTHON) -IS tools/install.py --prefix '$(PREFIX)' --destdir '$(DESTDIR)'

all:
	@echo 'Nothing to build: run bin/mxq-reap, or make check, or make install. make help says what else there is.'

# The comment at the head of this file.
help:
	@sed -n '/^#/!q; s/^# \{0,1\}//p' $(firstword $(MAKEFILE_LIST))

setup-tests:
	@tools/setup-tests '$(PYTHON)' '$(VENV)'

check: setup-tests
	@$(pytest) -m 'not long and (quick or not (crash or slow))' tests/unit tests/cli tests/meta tests/crash

check-crash: setup-tests
	@$(pytest) -m 'not long and (crash or slow)' tests/unit tests/cli tests/meta tests/crash

check-engines: setup-tests
	@JOBS=0 VENV=$(VENV) tools/run-tests -m 'not long' tests/engines

check-scale: setup-tests
	@JOBS=0 VENV=$(VENV) tools/run-tests -m 'not long' tests/scale

long-check: setup-tests
	@$(pytest) -m long tests

check-installed: setup-tests
	@rm -rf build/installed
	@$(PYTHON) -IS tools/install.py --prefix '$(CURDIR)/build/installed' install
	@MXQ_TEST_BIN='$(CURDIR)/build/installed/bin' \
		$(pytest) -m 'not long and not slow' tests/cli

test: setup-tests
	@$(pytest) $(T)

lint:
	@$(PYTHON) -IS tools/lint.py

completions:
	@$(PYTHON) -IS tools/completions.py

bench:
	@$(PYTHON) bench/bench.py $(B)

install:
	@$(install) --python '$(PYTHON)' install

uninstall:
	@$(install) uninstall

# From a copy: what dpkg-buildpackage leaves behind stays out of the tree.
deb:
	@dpkg-checkbuilddeps || { echo 'make deb: install debhelper, dh-python and build-essential' >&2; exit 1; }
	@rm -rf $(DEB) && mkdir -p $(DEB)/mxq
	@tar -c --exclude=./build --exclude=./.git --exclude='./.venv*' --exclude=__pycache__ . | tar -x -C $(DEB)/mxq
	@cd $(DEB)/mxq && dpkg-buildpackage -b -us -uc
	@ls $(DEB)/*.deb

clean:
	rm -rf build $(VENV) $(VENV).new $(VENV).lock
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.PHONY: all help setup-tests check check-crash check-engines check-scale long-check \
	check-installed test lint completions bench install uninstall deb clean
