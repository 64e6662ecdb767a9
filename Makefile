# `make book` needs Python 3.11 or newer and make; every other target sets up what it needs.
PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
GRADE_PY := .venv-grade/bin/python
EXTRAS_PY := .venv-extras/bin/python
SETUP := $(PYTHON) tools/setup_venv.py
# Options of your own for lab, grade and feedback: make lab ARGS="--no-browser --port=8888".
ARGS ?=
# One thread a process: BLAS pools fight over two cores.
export OMP_NUM_THREADS ?= 1
# Programs of a virtual environment name its folder: where that was moved or copied, all stamps go, and it is made anew.
MOVED := $(shell for venv in .venv .venv-grade .venv-extras; do if [ -e $$venv/.place ] && \
	  ! { [ -x $$venv/bin/python ] && [ "$$(cat $$venv/.place)" = "$$(pwd -P)" ]; }; then \
	  rm -f $$venv/.book $$venv/.lab $$venv/.dev $$venv/.torch $$venv/.grade $$venv/.extras; fi; done)

.DEFAULT_GOAL := help
.PHONY: help book html execute lab torch extras test lint test-models test-labs test-launch test-extras test-weekly test-submissions test-notebooks \
        test-exercises test-site \
        release start grade feedback teacher usb frontend lock bench clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

book: html  ## build the book from the committed outputs and serve it on a free port
	@$(PY) -m shardlab serve _build/html

html: $(VENV)/.book  ## build the book into _build/html
	@$(PY) tools/build_book.py

execute: $(VENV)/.torch $(VENV)/.dev  ## run every notebook anew and write its outputs
	@$(PY) tools/execute.py

# The settings keep JupyterLab from asking the network for news and updates, and the reader whether it may.
lab: $(VENV)/.lab  ## open JupyterLab on the chapters (as root: ARGS=--allow-root)
	@$(PY) -m jupyter lab --ServerApp.root_dir="$(CURDIR)" --LabApp.default_url=/lab/tree/notebooks \
	  --LabApp.app_settings_dir="$(CURDIR)/tools/jupyterlab" $(ARGS)

torch: $(VENV)/.torch  ## add PyTorch, for the labs on real processes

extras: .venv-extras/.extras  ## add DeepSpeed, Megatron-core and Ray, in a venv of their own

test: lint test-models test-labs test-launch test-notebooks test-exercises test-site  ## pass every test that a change must pass

lint: $(VENV)/.dev  ## ruff (notebooks too), mypy, locks in step
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy

test-models: $(VENV)/.dev $(VENV)/.torch frontend/node_modules/.ready  ## models, experiments, quizzes, command line
	$(PY) -m pytest -q -n 2 --dist worksteal --timeout 900 tests --ignore=tests/labs --ignore=tests/launch --ignore=tests/extras --ignore=tests/notebooks --ignore=tests/exercises --ignore=tests/site

test-labs: $(VENV)/.dev $(VENV)/.torch  ## real processes
	$(PY) -m pytest -q -n 2 --dist loadfile --no-loadscope-reorder tests/labs

test-launch: $(VENV)/.dev $(VENV)/.torch  ## the launch files: torchrun, a Slurm of two nodes, Kubernetes' schemas
	$(PY) -m pytest -q -rs -n 2 --dist loadfile --timeout 900 tests/launch

test-weekly: test-extras test-submissions  ## what would take the tests of a change over 40 minutes

test-extras: .venv-extras/.extras  ## weekly: labs on whole systems, DeepSpeed, Megatron-core, Ray
	$(EXTRAS_PY) -m pytest -q tests/extras

test-submissions: $(VENV)/.dev $(VENV)/.torch .venv-grade/.grade  ## weekly: every wrong submission of every assignment
	$(PY) -m pytest -q tests/exercises/test_assignments.py --all-submissions

test-notebooks: $(VENV)/.dev $(VENV)/.torch  ## hygiene, and nbval on every notebook
	$(PY) -m pytest -q -n 2 --dist loadfile --timeout 900 --nbval --nbval-sanitize-with tests/notebooks/sanitize.cfg \
	  --nbval-kernel-startup-timeout 280 tests/notebooks notebooks

test-exercises: $(VENV)/.dev $(VENV)/.torch .venv-grade/.grade  ## assignments: reference, empty and wrong submissions
	$(PY) -m pytest -q -n 2 --dist loadfile --no-loadscope-reorder --timeout 900 tests/exercises

test-site: html teacher $(VENV)/.dev frontend/node_modules/.ready  ## the built book in a real Chromium
	$(PY) -m pytest -q -n 2 --dist loadfile --timeout 900 tests/site

release: .venv-grade/.grade  ## write the student release of every assignment
	$(GRADE_PY) tools/exercises.py release

start: .venv-grade/.grade  ## copy the assignments to exercises/work, to do them yourself
	$(GRADE_PY) tools/exercises.py start

grade: .venv-grade/.grade  ## grade exercises/submitted and write exercises/grades.csv (ARGS: see its --help)
	$(GRADE_PY) tools/exercises.py grade $(ARGS)

feedback: .venv-grade/.grade  ## write a feedback page for every graded submission
	$(GRADE_PY) tools/exercises.py feedback $(ARGS)

teacher: html $(VENV)/.dev  ## build the teacher's edition, with all answers, into _build/teacher
	@$(PY) tools/teacher_edition.py

usb: html release $(VENV)/.lab  ## write a folder for a USB stick into _build/usb: installs without a network
	@$(PY) tools/usb_stick.py

frontend: frontend/node_modules/.ready  ## rebuild the browser files in src/shardlab/web
	cd frontend && node build.mjs

bench: $(VENV)/.dev frontend/node_modules/.ready  ## print the benchmarks' ratios
	@for b in benchmarks/*.py; do echo "== $$b"; $(PY) $$b || exit 1; done

lock: $(VENV)/.dev  ## resolve the requirement locks again
	@$(PY) tools/lock.py

clean:  ## remove what the build made (the virtual environments stay)
	rm -rf _build .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(VENV)/.book: requirements/book.txt pyproject.toml
	@$(SETUP) $(VENV) book requirements/book.txt
$(VENV)/.lab: $(VENV)/.book requirements/lab.txt
	@$(SETUP) $(VENV) lab requirements/lab.txt
$(VENV)/.dev: $(VENV)/.lab requirements/dev.txt
	@$(SETUP) $(VENV) dev requirements/dev.txt
$(VENV)/.torch: $(VENV)/.book requirements/torch.txt
	@$(SETUP) $(VENV) torch requirements/torch.txt
.venv-extras/.extras: requirements/extras.txt pyproject.toml
	@$(SETUP) .venv-extras extras requirements/extras.txt
.venv-grade/.grade: requirements/grade.txt pyproject.toml
	@$(SETUP) .venv-grade grade requirements/grade.txt

frontend/node_modules/.ready: frontend/package-lock.json
	@command -v npm >/dev/null || { echo "Node.js with npm is needed here (Debian: apt install nodejs npm)" >&2; exit 1; }
	cd frontend && npm ci --no-audit --no-fund --ignore-scripts
	@touch $@
