# One environment, made when pyproject.toml or constraints.txt change and not otherwise.
PYTHON ?= python3
READY := .venv/ready
BIN := .venv/bin
# The kernel of the native backend, compiled again when its sources change; without a compiler PyTorch computes alone.
WEIGHTS := .venv/weights-alone
SOURCES := regard/backends/native
NATIVE := $(SOURCES)/libregard_native.digest
BUILT := $(READY) $(NATIVE)
# Threads that wait spin briefly and then sleep: on a busy machine spinning ones starve each other.
export GOMP_SPINCOUNT ?= 20000
# Where this is set, as in many containers, every process compiles what it imports: collecting the tests took 22 CPU
# seconds, and takes 11 without it.
unexport PYTHONDONTWRITEBYTECODE

# Processes of the suite, for 2 cores. One more than there are cores fills the time in which tests wait for browsers and
# programs.
WORKERS ?= 3

.PHONY: demo setup test test-library test-lab test-long test-gpu test-machines test-floors check fix docs figures explorer pages bench wheel wheels release arm clean

demo: $(BUILT)                ## train a translator here, score it, and show what it attended to
	$(BIN)/regard demo

setup: $(BUILT)               ## only make the environment, in .venv, with the command regard
	@echo "ready: . .venv/bin/activate"

test: $(BUILT) $(WEIGHTS)                ## the test suite and the examples in the documentation
	$(BIN)/pytest -n $(WORKERS)

test-library: $(BUILT) $(WEIGHTS)        ## the tests of regard alone, after a change of the library
	$(BIN)/pytest -n $(WORKERS) tests/regard regard

test-lab: $(BUILT) $(WEIGHTS)            ## the tests of regard_lab alone
	$(BIN)/pytest -n $(WORKERS) tests/regard_lab regard_lab

test-long: $(BUILT) $(WEIGHTS)           ## the tests that take minutes, and the runs of docs/reliability.md
	$(BIN)/pytest -n $(WORKERS) -m once
	$(BIN)/python -m tests.long all

test-gpu: $(READY)            ## the tests that need a GPU; their kernels are compiled first
	$(BIN)/pytest -m gpu

test-machines: $(BUILT) $(WEIGHTS)       ## the suite as on other processors, with 1, 2 and 4 threads, and on a busy machine
	$(BIN)/python tests/machines.py

# Every dependency as old as pyproject.toml allows. FLOORS says where PyTorch comes from, or what else uv should hear.
FLOORS ?= --torch-backend cpu
test-floors: $(READY)         ## the suite with the oldest versions that pyproject.toml allows
	$(PYTHON) -m venv .venv-floors
	$(BIN)/pip install -q uv
	$(BIN)/uv pip install -q --python .venv-floors/bin/python --resolution lowest-direct $(FLOORS) -e '.[dev]'
	.venv-floors/bin/python -m pytest -n $(WORKERS)

# The arithmetic also without the vector instructions of this processor; the suite comes last. FlexAttention on a CPU is
# made of PyTorch's operations, which the other files meet; how tensors lie in memory matters to vector instructions.
# Windows of images are the kernel's, which does not read these settings. The other files left out ask for few numbers
# that a processor computes: they count memory, costs, pairs and lines, read plans and files, or interrupt, move and copy.
# Two processes are enough for so short a run: the start of a third is a twelfth of its CPU time.
SAME_EVERYWHERE := backends/test_flex.py backends/test_limits.py backends/test_schedule_of_patterns.py \
  backends/test_streamed.py backends/test_windows.py caches/test_cache_machine.py contracts/test_hidden_by_bias.py \
  backends/test_score_blocking.py contracts/test_every_tensor_argument.py contracts/test_plan.py \
  contracts/test_memory.py contracts/test_enrolled.py contracts/test_costs.py contracts/test_refusals.py \
  caches/test_interrupted.py caches/test_threads.py caches/test_copies.py caches/test_cache_files.py \
  caches/test_reserved.py
ELSEWHERE := tests/regard/contracts tests/regard/backends tests/regard/caches \
  $(addprefix --ignore=tests/regard/,$(SAME_EVERYWHERE))

check: $(BUILT) $(WEIGHTS)               ## what CI runs: format, lint, types, tests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/ty check regard regard_lab
	$(BIN)/python tests/machines.py --only plain -n 2 $(ELSEWHERE)
	$(BIN)/pytest -n $(WORKERS) -m 'not slow and not gpu'

fix: $(READY)                 ## let the tools repair what they can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(READY)                ## the site, in site/: no network is needed to read it
	$(BIN)/pip install -q -c constraints.txt -e '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict  # not --quiet, which hides warnings from --strict as well
	@echo "open site/index.html"

figures: $(READY) $(WEIGHTS)             ## make anew the pages and the command help that come from reports and docstrings
	$(BIN)/python -m docs.making

explorer:                     ## build the script and style of the explorer from their sources; needs node, nothing else does
	cd regard_lab/seeing/explorer/source && npm ci --no-audit --no-fund && npm run --silent check && node build.mjs

# Without them the tests of pages are skipped, so what cannot be installed is named and fails nothing.
BROWSERS := chromium chromium-browser google-chrome google-chrome-stable
AXE := regard_lab/seeing/explorer/source/node_modules/axe-core/axe.min.js
pages:                        ## install what the tests of pages need: Chromium with apt-get, as root, and axe-core with npm
	@for name in $(BROWSERS); do command -v $$name >/dev/null && exit 0; done; \
	  { timeout 60 apt-get -qq update && timeout 240 apt-get -qq install -y --no-install-recommends chromium fonts-dejavu-core; } >/dev/null 2>&1 \
	  || echo "Chromium cannot be installed: the tests that open pages in a browser are skipped"
	@test -e $(AXE) || (cd regard_lab/seeing/explorer/source && timeout 120 npm ci --no-audit --no-fund --ignore-scripts --silent) \
	  || echo "axe-core cannot be installed: the tests of accessibility are skipped"

PATTERNS := overhead plain cliffs strided window window-backward decode statistics big-bird
bench: $(BUILT)               ## measurements that take minutes; results are committed as reports
	$(BIN)/pip install -q -c constraints.txt -e '.[bench]'
	# A report of another family of processors is kept: name another folder for yours.
	$(BIN)/regard bench $(PATTERNS) --out benchmarks/results/attention_cpu
	OMP_NUM_THREADS=1 $(BIN)/regard bench linear additive --out benchmarks/results/mechanisms_cpu
	$(BIN)/python -m benchmarks.complexity --out benchmarks/results/complexity_cpu
	$(BIN)/python -m benchmarks.behaviour --out benchmarks/results/behaviour_cpu
	$(BIN)/python benchmarks/evicting.py
	$(BIN)/python benchmarks/length_story.py
	$(BIN)/python benchmarks/transfer.py --seeds 0 1 2
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/relations.py
	$(BIN)/python benchmarks/kv_heads.py heads --seeds 0 1 2
	$(BIN)/python benchmarks/lesson_reports.py
	$(BIN)/python benchmarks/native_kernel.py

# The wheel is made from the source distribution, so that both are known to be whole.
wheel: $(READY)               ## dist/: a source distribution, and a wheel with the compiled kernel
	$(BIN)/pip install -q -c constraints.txt build
	REGARD_NATIVE_BUILD=required $(BIN)/python -m build --outdir dist .

# What compiles for other machines and checks archives; `regard[shipping]` in pyproject.toml has the same.
SHIPPING := ziglang auditwheel hatchling twine
wheels: $(BUILT)              ## dist/: wheels for Linux on x86-64 and Arm, for macOS on Arm, and one for everything else, each tried
	$(BIN)/pip install -q -c constraints.txt $(SHIPPING)
	$(BIN)/python -m shipping.wheels

release: $(BUILT)             ## dist/release: a dry run of a release with all wheels; nothing is uploaded and nothing here changes
	$(BIN)/pip install -q -c constraints.txt $(SHIPPING)
	$(BIN)/python -m shipping.release

# Debian 12 with qemu-user-static; without it, one sentence says so. The first line of each download is its size.
ARM_CASES ?= 200
arm: $(BUILT)                 ## the kernel on 64-bit Arm, emulated: its numbers by formulas, its bits by those of this machine
	$(BIN)/pip install -q -c constraints.txt ziglang
	$(BIN)/python -m shipping.emulated --fetch
	$(BIN)/python -m tests.arm --cases $(ARM_CASES)

# uv takes seconds; pip is the way back where uv cannot be had.
$(READY): pyproject.toml constraints.txt
	@echo "making the environment in .venv"
	@$(PYTHON) -m venv .venv
	@( $(BIN)/pip install -q uv && UV_FIND_LINKS="$${PIP_FIND_LINKS:-}" \
	  $(BIN)/uv pip install -q --python $(BIN)/python -c constraints.txt -e '.[dev]' ) \
	|| { [ -z "$$UV_TORCH_BACKEND" ] || { echo "uv failed, and pip would ignore UV_TORCH_BACKEND=$$UV_TORCH_BACKEND;" \
	       "make setup without it installs the build of PyTorch that pip finds" >&2; exit 1; }; \
	     echo "uv failed; installing with pip instead" >&2; $(BIN)/pip install -q -c constraints.txt -e '.[dev]'; }
	@touch $@

$(NATIVE): $(SOURCES)/build.py $(wildcard $(SOURCES)/source/*) | $(READY)
	$(BIN)/python $(SOURCES)/build.py || true

# Of rxnmapper a few tests read the weights; as a package it needs an older transformers. Without it these tests fail.
$(WEIGHTS): $(READY)
	@$(BIN)/pip install -q --no-deps rxnmapper==0.4.3 || true
	@rm -rf .venv/lib/python*/site-packages/tests  # comes with it, and would hide the tests of this project
	@touch $@

clean:
	rm -rf $(SOURCES)/libregard_native.* dist .venv .venv-floors runs site .pytest_cache .ruff_cache
