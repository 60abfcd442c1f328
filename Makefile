# The whole job and its checks. `make help` lists what there is, in groups; PROFILE=smoke (or gpu) selects another profile.
PROFILE ?= tiny
POOL    ?= cpu
FROM    ?= base
ROUNDS  ?= 2
PYTHON  ?= $(shell for python in python3.11 python3.12 python3; do $$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$python; break; }; done)

BIN   := .venv/bin
# Looked for when a recipe runs: `environment` installs it
UV     = $(shell test -x .venvs/uv/bin/uv && echo .venvs/uv/bin/uv || echo uv)
GRAPH := $(if $(filter tiny,$(PROFILE)),dvc.yaml,profiles/$(PROFILE)/dvc.yaml)
PARAMS := $(patsubst %dvc.yaml,%params.yaml,$(GRAPH))

# DVC and torch want a name of the user, which a container's user may lack (`docker run --user 1234`).
export LOGNAME ?= $(or $(USER),$(shell id -un 2>/dev/null || id -u))

# Compiled once, every stage starts seconds sooner.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help environment documents repro flow rft plan preflight ui deploy worker worker-service test test-all unit lint bench speedrun gpu-environments verl-environment art-vllm check-gpu-calls check-trainers readme params

# The targets of a group: those whose line has the group's name after ##.
LIST = echo '$(1)'; sed -n 's/^\([a-z-]*\):.*\#\#$(2) /  make \1\t/p' Makefile | expand -t 26

help:  ##change this list
	@$(call LIST,Start here,start)
	@$(call LIST,Run,run)
	@$(call LIST,At full size,full)
	@$(call LIST,On a schedule and on other machines,team)
	@$(call LIST,Change the code,change)

environment:  ##run .venv/ from the committed lock
	@test -n "$(PYTHON)" || { echo "error: no Python 3.11 or newer on PATH; install python3.11 (or name one: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS))." >&2; exit 1; }
	@$(PYTHON) tools/environment.py $(EXTRAS)

# The stage make_questions reads a copy of DOCUMENTS, which DVC compares.
documents:
	@test -z "$(DOCUMENTS)" || grep -q "data/$(PROFILE)/documents" $(PARAMS) || { echo "error: the profile '$(PROFILE)' makes no questions of documents; DOCUMENTS is for the profiles own and own_gpu." >&2; exit 1; }
	@test -z "$(DOCUMENTS)" || test -d "$(DOCUMENTS)" || { echo "error: DOCUMENTS=$(DOCUMENTS) is not a folder." >&2; exit 1; }
	@test -z "$(DOCUMENTS)" || { mkdir -p data/$(PROFILE) && rm -rf data/$(PROFILE)/documents && cp -RL "$(DOCUMENTS)/." data/$(PROFILE)/documents; }

repro: documents environment  ##start run whatever changed, JOBS (2) stages side by side, then print the F1 table and where the time went
	@test -e $(GRAPH) || { echo "error: there is no profile '$(PROFILE)': $(GRAPH) does not exist. Profiles: tiny $(notdir $(wildcard profiles/*))." >&2; exit 1; }
	@$(BIN)/python -m flows.driver $(PROFILE) $(if $(JOBS),--jobs $(JOBS))
	@$(BIN)/deepsearch summary $(PROFILE)

flow: environment  ##run the graph as a Prefect flow run: a task per stage
	@$(BIN)/python -m flows.reproduce $(PROFILE)
	@$(BIN)/deepsearch summary $(PROFILE)

# Round n samples from the model of round n - 1, which is kept as models/PROFILE/rft/<n - 1>; FROM is round 0's model.
rft: environment  ##run ROUNDS (2) of rejection sampling from the model FROM (base): SFT on its own right answers, then on the new model's
	@test -d models/$(PROFILE)/$(FROM) || { echo "error: models/$(PROFILE)/$(FROM) does not exist yet; run make repro PROFILE=$(PROFILE) up to it first." >&2; exit 1; }
	@git -c user.useConfigOnly=true var GIT_COMMITTER_IDENT >/dev/null 2>&1 || { echo "error: DVC keeps every round as an experiment, a commit that needs a name: git config user.name NAME && git config user.email EMAIL" >&2; exit 1; }
	@test -d models/$(PROFILE)/rft/0 || { mkdir -p models/$(PROFILE)/rft && cp -r models/$(PROFILE)/$(FROM) models/$(PROFILE)/rft/0; }
	@for round in $$(seq $(ROUNDS)); do \
	  $(BIN)/dvc exp run $(GRAPH):merge $(addprefix -S $(PARAMS):,$(SET)) -S $(PARAMS):synthesize.teacher=models/$(PROFILE)/rft/$$((round - 1)) || exit 1; \
	  rm -rf models/$(PROFILE)/rft/$$round && cp -r models/$(PROFILE)/sft models/$(PROFILE)/rft/$$round || exit 1; \
	done

plan: environment  ##start what a run of PROFILE takes: time, disk, memory, an API's tokens and their price
	@$(BIN)/deepsearch plan $(PROFILE)

preflight: environment  ##full PROFILE's training path on a small model: what works, what to do; before it costs hours
	@$(BIN)/deepsearch preflight $(PROFILE)

ui: environment  ##start Prefect and MLflow on loopback until Ctrl-C; HOST=0.0.0.0 for other machines, with a login
	@$(BIN)/python -m flows.servers $(if $(HOST),--host $(HOST))

deploy: environment  ##team a Prefect deployment of every profile
	@$(BIN)/python -m flows.worker deploy

worker: environment  ##team take runs of the pool POOL (cpu or gpu) on this machine until Ctrl-C, LIMIT (1) at once
	@$(BIN)/python -m flows.worker start $(POOL) $(if $(LIMIT),--limit $(LIMIT))

worker-service: environment  ##team write a systemd unit that keeps `make worker` running
	@$(BIN)/python -m flows.worker service $(POOL) $(if $(LIMIT),--limit $(LIMIT))

test test-all unit lint bench: EXTRAS := --all-extras
# Tests of a day wait for servers and processes at times, quick ones do not.
WORKERS = $(or $(JOBS),3)
unit: WORKERS = $(or $(JOBS),2)
# pytest loads the plugins of every folder of PYTHONPATH.
PYTEST = env -u PYTHONPATH $(BIN)/python -m pytest --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder
# The tests wait for servers and processes at times; the checks of the code use these. They speak only of what they find.
define BESIDE_LINT
@mkdir -p work; \
$(MAKE) --no-print-directory lint >work/lint.log 2>&1 & lint=$$!; \
$(PYTEST) $(1); tests=$$?; \
wait $$lint || { cat work/lint.log >&2; exit 1; }; \
exit $$tests
endef

test: environment  ##start every check, JOBS (3) test files side by side
	$(call BESIDE_LINT)

test-all: environment  ##change the checks of `make test`, and what a night has time for: kills, many workers, other environments
	$(call BESIDE_LINT,-m "")

unit: environment  ##change the quick tests, each below .2 s
	@$(PYTEST) -m "not slow and not nightly"

lint: environment  ##change ruff, import-linter, pyright, and whether uv.lock fits pyproject.toml
	@.venvs/uv/bin/uv lock --quiet --check
	@$(BIN)/ruff check
	@$(BIN)/lint-imports --no-cache
	@$(BIN)/pyright

bench: environment  ##change the speed of retrieval as ratios to other libraries, against the committed ones; 3 minutes on a quiet machine
	@$(BIN)/python -m benchmarks.ratios

speedrun: environment  ##change minutes from a clone of HEAD to F1 on 200 real questions, as a row of docs/speedrun.md that says WHAT changed; 30 minutes of two cores
	@$(BIN)/python -m benchmarks.speedrun "$(WHAT)"

readme: environment  ##change the generated parts of documents: README's results, the gpu profile's departures, the speedrun's table
	@$(BIN)/python -m tools.readme
	@$(BIN)/python -m tools.departures
	@$(BIN)/python -m benchmarks.speedrun --table

params: environment  ##change params.yaml and dvc.yaml of every profile, from the project's own two and profiles/*/profile.yaml
	@$(BIN)/python -m tools.params

gpu-environments: environment  ##full .venvs/{core,index,sft,rl,serve}, the interpreters of the gpu profiles
	@for family in core index sft rl serve; do \
	  $(UV) venv -q --allow-existing --relocatable --managed-python --python 3.11 .venvs/$$family && \
	  $(UV) pip sync --python .venvs/$$family/bin/python profiles/gpu/requirements/$$family.txt && \
	  $(UV) pip install --python .venvs/$$family/bin/python --no-deps -e . && \
	  $(PYTHON) tools/environment.py --adopt .venvs/$$family || exit 1; \
	done
	@.venvs/serve/bin/python -m tools.sentence_model

verl-environment: environment  ##full .venvs/verl, for rl.backend.engine: verl
	@$(UV) venv -q --allow-existing --relocatable --managed-python --python 3.11 .venvs/verl
	@$(UV) pip sync --python .venvs/verl/bin/python profiles/gpu/requirements/verl.txt
	@$(UV) pip install --python .venvs/verl/bin/python --no-deps -e .

art-vllm:  ##full ART's own vLLM, for rl.backend.service: unsloth; after gpu-environments
	@PATH="$(abspath .venvs/uv/bin):$$PATH" .venvs/rl/bin/python -m tools.art_runtime

check-gpu-calls: environment  ##full the gpu profile's calls of vllm, unsloth and faiss-gpu, read by those tools in throw-away environments
	@$(BIN)/python -m tests.gpu_profile.check_environment
	@$(BIN)/python -m pytest -m "" tests/gpu_profile

check-trainers: environment  ##full the conformance suite inside other trainers, in throw-away environments; steps of TRL's and veRL's on a CPU
	@$(BIN)/python -m tests.environment.check_environments
	@$(BIN)/python -m pytest -m "" tests/environment tests/train/verl/test_verl_overrides.py tests/train/verl/test_verl_trains.py
