# All that is needed is Python with venv, g++, make and the package registries:
#   make demo     build the wheel, install it, train two small models with it
#   make test     build the wheel, install it, run every test against it
#   make build    put the library into the checkout, for `import tf_ti` from there
#   make wheel    put the wheel into dist/
#   make bench    measure against the peers      make asan-test    test under ASan and UBSan
#   make lint     check the format and style     make format       mend them
#   make cuda     compile the CUDA sources too   make clean        remove all of this
#   make gpu-check  check and time the CUDA code on the GPU at hand, without TensorFlow
# Another TensorFlow: make test TF_VERSION=2.17.1. Another configuration: make test CONFIG=cuda.
# Each of them has its own .venv-* and dist-*.

PYTHON ?= python3
default_tf := 2.21.0
TF_VERSION ?= $(default_tf)
TF_PACKAGE ?= $(if $(filter cuda,$(CONFIG)),tensorflow[and-cuda],tensorflow-cpu)
CONFIG ?=
PYTEST_FLAGS ?=

config := $(addprefix --config=,$(CONFIG))
suffix := $(patsubst %,-tf%,$(filter-out $(default_tf),$(TF_VERSION)))$(addprefix -,$(CONFIG))
venv := .venv$(suffix)
dist := dist$(suffix)
bin := $(abspath $(venv))/bin
export PYTHON_BIN_PATH := $(bin)/python
export PIP_DISABLE_PIP_VERSION_CHECK := 1

sources := $(shell find .bazelrc .bazelversion BUILD WORKSPACE LICENSE README.md pyproject.toml \
	build_pip_pkg.sh bazel cc tf_ti -type f \
	-not -name '*.pyc' -not -name '_tf_ti*.so' -not -name _build_info.py)
cpp := $(shell find cc gpu_check tests -name '*.cc' -o -name '*.h' -o -name '*.cuh')

.PHONY: help
help:
	@sed -n '/^#/!q; s/^# \?//p' Makefile

$(venv)/.tools: requirements-dev.txt
	@$(PYTHON) -c 'import ensurepip, sys; sys.exit(sys.version_info < (3, 10))' || { \
	  echo "make: $(PYTHON) must be Python 3.10 or newer with ensurepip and venv (Debian's package"; \
	  echo "python3-venv); or name another one: make PYTHON=/path/to/python3" ; exit 1; }
	$(PYTHON) -m venv $(venv)
	$(bin)/pip install --quiet '$(TF_PACKAGE)==$(TF_VERSION)' -r requirements-dev.txt
	@touch $@

$(venv)/.peers: benchmarks/requirements.txt $(venv)/.tools
	$(bin)/pip install --quiet -r $<
	@touch $@

$(dist)/.built: $(sources) $(venv)/.tools
	rm -rf $(dist)
	./build_pip_pkg.sh $(dist) $(config)
	@touch $@

$(venv)/.installed: $(dist)/.built
	$(bin)/pip install --quiet --force-reinstall --no-deps $(dist)/*.whl
	@touch $@

.PHONY: demo test build wheel bench lint format asan-test cuda gpu-check clean
demo: $(venv)/.installed
	$(bin)/python examples/train_char_model.py
	$(bin)/python examples/train_text_classifier.py

# From tests/, where the checkout's tf_ti does not hide the installed one.
test: $(venv)/.installed
	cd tests && $(bin)/pytest $(PYTEST_FLAGS)

build: $(venv)/.tools
	bazel/build_library.sh tf_ti $(config)

wheel: $(dist)/.built

bench: build $(venv)/.peers
	$(bin)/python -m benchmarks

lint: $(venv)/.tools
	$(bin)/clang-format --dry-run --Werror $(cpp)
	$(bin)/ruff format --check
	$(bin)/ruff check

format: $(venv)/.tools
	$(bin)/clang-format -i $(cpp)
	$(bin)/ruff format
	$(bin)/ruff check --fix

# The sanitizers' libraries must come first in the process, and the C++ library, whose exceptions
# they watch, right after them. Python itself leaks.
sanitizers = $(foreach name,asan ubsan stdc++,$(shell $${CXX:-g++} -print-file-name=lib$(name).so))
asan := .cache/asan
asan-test: $(venv)/.installed
	rm -rf $(asan) && mkdir -p $(asan) && cp -r tf_ti $(asan)
	bazel/build_library.sh $(asan)/tf_ti --config=asan
	cd tests && PYTHONPATH=$(abspath $(asan)) LD_PRELOAD="$(sanitizers)" \
	  ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1 UBSAN_OPTIONS=print_stacktrace=1 $(bin)/pytest $(PYTEST_FLAGS)

cuda: $(venv)/.tools
	bazel/bazel.sh build --config=cuda //:_tf_ti.so

gpu-check:
	$(PYTHON) gpu_check/check.py $(GPU_CHECK_FLAGS)

clean:
	[ ! -d .cache/bazel ] || bazel/bazel.sh shutdown
	rm -rf .cache .venv .venv-* build dist dist-* *.egg-info bazel-*
	rm -f tf_ti/_tf_ti*.so tf_ti/_build_info.py
