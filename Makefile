# All that is needed is Python with venv, g++, make and the package registries:
#   make demo     build the wheel, install it, train two small models with it
#   make test     build the wheel, install it, run every test against it
#   make test-fast  the same with two cases of each test, and none that takes long
#   make test-cc  the C++ tests alone, without and with sanitizers, and without TensorFlow's kernels
#   make build    put the library into the checkout, for `import tf_ti` from there
#   make wheel    put the wheel into dist/
#   make release  wheels for all TensorFlows, tried in empty environments, into dist-release/
#   make bench    measure against the peers      make asan-test    test under ASan and UBSan
#   make test-tensorflows  build against older TensorFlows too, check the insides that tf_ti uses
#   make oracles  install torch, JAX and ONNX, beside which some tests run where they are there
#   make lint     check format, style and types  make format       mend what it can
#   make cuda     compile the CUDA sources too, with CUDA 12, or with CUDA_HOME's nvcc
#   make cuda-check  the same in a third of the time, without machine code for any GPU
#   make docs     build the site into build/docs/html
#   make docs-look  open each page of the site in Chromium, on a phone and a desktop, and find faults
#   make fuzz     load 10,000 damaged IR files
#   make clean    remove all of this, and what the demo made in build/
#   make gpu-check  check and time the CUDA code on the GPU at hand, without TensorFlow
#   make gpu-test   run the tests of GPUs on the one at hand, with any build of TensorFlow
#   make emulated-gpu  build what the tests run in place of a GPU, as `make test` does before them
# Another TensorFlow: make test TF_VERSION=2.17.1. Another configuration: make test CONFIG=cuda.
# Each of them has its own .venv-* and dist-*.

ifneq ($(words $(CURDIR)),1)
  $(error $(CURDIR): make builds in no folder whose path has a space)
endif

PYTHON ?= python3
default_tf := 2.21.0
older_tfs := 2.17.1 2.18.1 2.19.1 2.20.0
TF_VERSION ?= $(default_tf)
TF_PACKAGE ?= $(if $(filter cuda,$(CONFIG)),tensorflow[and-cuda],tensorflow-cpu)
CONFIG ?=
PYTEST_FLAGS ?=
CC_TEST_FLAGS ?=

config := $(addprefix --config=,$(CONFIG))
suffix := $(patsubst %,-tf%,$(filter-out $(default_tf),$(TF_VERSION)))$(addprefix -,$(CONFIG))
venv := .venv$(suffix)
dist := dist$(suffix)
bin := $(abspath $(venv))/bin
# Named after its version: with the next default, .venv has another.
tensorflow := $(venv)/.tensorflow-$(TF_VERSION)
# One at a time, as `make --jobs` may have several, and pip knows of no other.
pip = flock $(venv) $(bin)/pip install --quiet
lint := .venv-lint
comma := ,
# A library for GPUs needs drivers of the CUDA that compiles it: TensorFlow's is 12.
toolkit := .cache/cuda-12.4
cuda_home := $(or $(CUDA_HOME),$(abspath $(toolkit)))
googletest := .cache/googletest
# Debian's package googletest, if it is installed.
googletest_home := $(or $(GOOGLETEST_HOME),$(patsubst %/googletest/src/gtest-all.cc,%,$(wildcard \
	/usr/src/googletest/googletest/src/gtest-all.cc)),$(abspath $(googletest)))
export PYTHON_BIN_PATH := $(bin)/python
export PIP_DISABLE_PIP_VERSION_CHECK := 1

sources := $(shell find .bazelrc .bazelversion BUILD WORKSPACE LICENSE README.md pyproject.toml \
	build_pip_pkg.sh requirements/runtime.txt requirements/keras.txt bazel cc tf_ti -type f \
	-not -name '*_test.cc' -not -path '*/testing/*' -not -name '*.pyc' -not -name '_tf_ti*.so' -not -name _build_info.py)
cpp := $(shell find benchmarks cc docs gpu_check tests -name '*.cc' -o -name '*.h' -o -name '*.cuh')

.PHONY: help
help:
	@sed -n '/^#/!q; s/^# \?//p' Makefile

# One line before what takes a while: what it is, and how long.
say = @echo "make: $(1)"

$(tensorflow): requirements/keras.txt
	@$(PYTHON) -c 'import ensurepip, sys; sys.exit(not (3, 10) <= sys.version_info < (3, 14))' || { \
	  echo "make: $(PYTHON) must be a Python that TensorFlow has packages for, 3.10 to 3.13, with ensurepip"; \
	  echo "and venv (Debian's package python3-venv); or name another: make PYTHON=/path/to/python3"; exit 1; }
	$(call say,TensorFlow $(TF_VERSION) into $(venv): 350 MB to download$(comma) a minute or two)
	$(PYTHON) -m venv $(venv)
	$(pip) '$(TF_PACKAGE)==$(TF_VERSION)' -r $<
	@rm -f $(venv)/.tensorflow* && touch $@

# A command installs what it uses, and no more. TensorFlow is there already: named once more, it
# keeps pip from changing what it needs (another NumPy, say).
install = $(call say,$(1) into $(venv)) && \
	$(pip) -r $< '$(TF_PACKAGE)==$(TF_VERSION)' && touch $@
$(venv)/.build-tools: requirements/build.txt $(tensorflow)
	$(call install,what builds the wheel)

$(venv)/.runtime: requirements/runtime.txt $(tensorflow)
	$(call install,what tf_ti needs beside TensorFlow)

$(venv)/.examples: requirements/examples.txt $(tensorflow)
	$(call install,what the examples draw with)

$(venv)/.tests: requirements/test.txt requirements/examples.txt $(tensorflow)
	$(call install,pytest and OpenVINO)

$(venv)/.docs: requirements/docs.txt $(tensorflow)
	$(call install,what builds the site)

$(venv)/.docs-look: requirements/docs-look.txt $(tensorflow)
	$(call install,what drives the browser)

$(venv)/.oracles: requirements/oracles.txt $(tensorflow)
	$(call install,torch$(comma) JAX and ONNX (360 MB to download))

$(venv)/.peers: benchmarks/requirements.txt requirements/oracles.txt $(tensorflow)
	$(call install,torch$(comma) JAX and the other peers)

# With tf_ti as users have it: type checkers find no fault with what is installed, only with its use.
$(lint)/.tools: requirements/lint.txt
	$(call say,what checks the sources into $(lint): 110 MB to download$(comma) half a minute)
	$(PYTHON) -m venv $(lint)
	$(lint)/bin/pip install --quiet -r $<
	cd $(lint)/lib/python3*/site-packages && ln -sfn ../../../../tf_ti .
	@touch $@

$(toolkit)/.fetched: bazel/cuda_toolkit.sh requirements/cuda.txt | $(tensorflow)
	$(call say,CUDA 12's compiler into $(toolkit): 120 MB to download)
	bazel/cuda_toolkit.sh $(toolkit)
	@touch $@

$(googletest)/.fetched: bazel/googletest.sh
	bazel/googletest.sh $(googletest)
	@touch $@

# What compiles CUDA sources does so with CUDA_HOME's nvcc, or else with that one.
with_cuda := cuda cuda-check $(if $(filter cuda,$(CONFIG)),$(dist)/.built build)
$(with_cuda): export CUDA_HOME := $(cuda_home)
$(with_cuda): $(if $(CUDA_HOME),,$(toolkit)/.fetched)

# Changes where a source comes or goes: no file's time tells of one that is gone.
ifneq ($(sort $(sources)),$(shell cat $(dist)/.sources 2>&1))
.PHONY: $(dist)/.sources
endif
$(dist)/.sources:
	@mkdir -p $(@D)
	@echo $(sort $(sources)) >$@

$(dist)/.built: $(sources) $(dist)/.sources $(venv)/.build-tools
	$(call say,the wheel: about five minutes on two cores where nothing is compiled yet)
	rm -f $(dist)/tf_ti-*.whl
	./build_pip_pkg.sh $(dist) $(config)
	@touch $@

$(venv)/.installed: $(dist)/.built $(venv)/.runtime
	$(pip) --force-reinstall --no-deps $(dist)/tf_ti-*.whl
	@touch $@

.PHONY: demo release fuzz test test-fast emulated-gpu test-cc test-tensorflows oracles build wheel bench docs docs-look lint format asan-test cuda cuda-check gpu-check gpu-test clean
demo: $(venv)/.installed $(venv)/.examples
	$(call say,training a character model: a minute)
	$(bin)/python examples/train_char_model.py
	$(call say,training a classifier of texts: half a minute)
	$(bin)/python examples/train_text_classifier.py

# From tests/, where the checkout's tf_ti does not hide the installed one.
in_parallel := --numprocesses=auto --maxprocesses=4 --dist=worksteal
pytest = cd tests && $(bin)/pytest $(in_parallel)
test: test-cc $(venv)/.installed $(venv)/.tests emulated-gpu
	$(call say,the tests: half an hour on two cores)
	$(pytest) $(PYTEST_FLAGS)

test-fast: test-cc $(venv)/.installed $(venv)/.tests
	$(call say,two cases of each test: some five minutes on two cores)
	$(pytest) -m 'not slow' $(PYTEST_FLAGS)

# The tests that run the kernels on an emulated GPU ask Bazel for the same: it is there then.
emulated-gpu: $(tensorflow)
	$(call say,what emulates a GPU: a minute or two on two cores where nothing is compiled yet)
	bazel/bazel.sh build //gpu_check:emulated //tests/gpu/plugin:emulated

test_cc = bazel/bazel.sh test --test_summary=terse --noshow_progress --ui_event_filters=-info \
	$(1) $(CC_TEST_FLAGS) && { grep --no-filename --recursive ^skipped bazel-testlogs/ | sort -u; true; }
# Some systems lay out memory too freely for ThreadSanitizer.
fixed_addresses = $(if $(shell setarch -R true 2>&1 || echo no),,--run_under='setarch -R')
test-cc asan-test: export GOOGLETEST_HOME := $(googletest_home)
test-cc: $(tensorflow) $(if $(filter $(abspath $(googletest)),$(googletest_home)),$(googletest)/.fetched)
	$(call say,the C++ tests: five minutes on two cores where nothing is compiled yet)
	@$(call test_cc,//:cc_tests)
	$(call say,the tests about threads under ThreadSanitizer)
	@$(call test_cc,--config=tsan $(fixed_addresses) //:thread_tests)

# Against older TensorFlows, as far as they build.
test-tensorflows:
	tests/package/tensorflows.sh '$(MAKE)' $(older_tfs)

oracles: $(venv)/.oracles

build: $(venv)/.runtime
	bazel/build_library.sh tf_ti $(config)

wheel: $(dist)/.built

# RELEASE.md says what it makes. TF_VERSIONS and PYTHONS choose some of them.
release:
	$(PYTHON) release/release.py --tensorflows $(or $(TF_VERSIONS),$(older_tfs) $(default_tf)) \
	  $(if $(PYTHONS),--pythons $(PYTHONS))

bench: build $(venv)/.peers
	$(bin)/python -m benchmarks

# A warning is an error: of a link that leads nowhere, or of a docstring that cannot be shown. Sphinx
# would not say it again of a page that it has read: after an error it reads all pages anew.
docs: $(venv)/.installed $(venv)/.docs
	cd docs && $(bin)/python -m sphinx -W --keep-going -q -b html -d ../build/docs/.doctrees . ../build/docs/html || { \
	  rm -rf ../build/docs/.doctrees; exit 1; }
	@echo "make: the site is there: build/docs/html/index.html"

# Of the site that is there: `make docs docs-look` builds it first.
docs-look: $(venv)/.docs-look
	@command -v chromium chromium-browser google-chrome >/dev/null || { \
	  echo "make: no Chromium here: apt-get install chromium (Debian's package)"; exit 1; }
	$(bin)/python docs/look.py $(SITE)

# mypy checks the package, then what users write: without TensorFlow's types, and with them.
schema := $(lint)/bin/check-jsonschema --quiet --builtin-schema
mypy := ../../$(lint)/bin/mypy --cache-dir=../../.cache/mypy
lint: $(lint)/.tools
	$(lint)/bin/clang-format --dry-run --Werror $(cpp)
	$(lint)/bin/ruff format --check
	$(lint)/bin/ruff check
	$(lint)/bin/mypy
	cd tests/type_checkers && $(mypy) usage.py
	cd tests/type_checkers && $(mypy) --strict --config-file= usage.py
	PYRIGHT_PYTHON_IGNORE_WARNINGS=1 $(lint)/bin/pyright -p tests/type_checkers
	$(schema) github-workflows .github/workflows/*.yml
	$(schema) github-workflows-require-timeout .github/workflows/*.yml
	$(schema) github-issue-config .github/ISSUE_TEMPLATE/config.yml
	$(schema) github-issue-forms $(filter-out %/config.yml,$(wildcard .github/ISSUE_TEMPLATE/*.yml))
	$(schema) citation-file-format CITATION.cff

format: $(lint)/.tools
	$(lint)/bin/clang-format -i $(cpp)
	$(lint)/bin/ruff format
	$(lint)/bin/ruff check --fix

# Files of OpenVINO's IR, damaged in as many ways. FIRST is a seed: without it, each call has others.
fuzz: $(venv)/.installed $(venv)/.tests
	cd tests/openvino && $(bin)/python openvino_fuzz.py $(or $(COUNT),10000) $(or $(FIRST),$(shell date +%s))

# The sanitizers' libraries must come first in the process, and the C++ library, whose exceptions
# they watch, right after them. Python itself leaks.
sanitizers = $(foreach name,asan ubsan stdc++,$(shell $${CXX:-g++} -print-file-name=lib$(name).so))
asan := .cache/asan
sanitized = PYTHONPATH=$(abspath $(asan)) LD_PRELOAD="$(sanitizers)" \
	ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1 UBSAN_OPTIONS=print_stacktrace=1 \
	TBB_ENABLE_SANITIZERS=1
asan-test: test-cc $(venv)/.installed $(venv)/.tests
	@$(call test_cc,--config=asan //:cc_tests)
	rm -rf $(asan) && mkdir -p $(asan) && cp -r tf_ti $(asan)
	bazel/build_library.sh $(asan)/tf_ti --config=asan
	cd tests && $(sanitized) $(bin)/pytest $(in_parallel) $(PYTEST_FLAGS)
	cd tests/openvino && $(sanitized) $(bin)/python openvino_fuzz.py 1000

# Without the library for XLA, which takes long to compile and has no CUDA in it.
cuda_package := .cache/cuda/tf_ti
cuda cuda-check: $(venv)/.runtime $(venv)/.tests
	bazel/bazel.sh build --config=$(subst -,_,$@) --output_groups=+registers \
	  //:_tf_ti.so //:_tf_ti.so_cuda_objects //:build_info
	$(if $(filter cuda,$@),$(bin)/python gpu_check/registers.py bazel-bin/*.registers)
	rm -rf $(cuda_package) && mkdir -p $(dir $(cuda_package)) && cp -r tf_ti $(cuda_package)
	rm -f $(cuda_package)/_tf_ti*.so
	install -m 644 bazel-bin/_tf_ti.so bazel-bin/_build_info.py $(cuda_package)
	cd tests && PYTHONPATH=$(abspath $(dir $(cuda_package))) $(bin)/pytest -k 'for_gpus or the_module' package/test_package.py

gpu-check:
	$(PYTHON) gpu_check/check.py $(GPU_CHECK_FLAGS)

# With the Python that has TensorFlow: nothing is installed, as there may be no internet.
gpu-test:
	$(PYTHON) tests/gpu/plugin/run.py $(PYTEST_FLAGS)

clean:
	[ ! -d .cache/bazel ] || bazel/bazel.sh shutdown
	rm -rf .cache .venv .venv-* build dist dist-* *.egg-info bazel-*
	rm -f tf_ti/_tf_ti*.so tf_ti/_build_info.py
