# SPDX-License-Identifier: Apache-2.0
# A thin front over scripts/setup and CMake presets. `make help` lists targets.
PRESET ?= release
BUILD  := build/$(PRESET)
SHERD  := $(BUILD)/sherd
ARGS   ?=
RANKS  ?= 2

.PHONY: help setup build test train bench soak docs wheel cuda-check gpu-test gpu-bench tidy \
  format lint clean

help:
	@echo "make train   set up, build, train a GPT with two ranks (ARGS=\"--data PATH\")"
	@echo "make test    set up, build, run every test (PRESET=debug|asan-ubsan|tsan|clang)"
	@echo "make build   set up and build"
	@echo "make bench   compare the speed of a step with PyTorch's (ARGS=\"--work tiny\")"
	@echo "make soak    run the long tests"
	@echo "make docs    make the API reference, build/docs/html/index.html"
	@echo "make wheel   make the Python package for that torch, build/wheels/*.whl"
	@echo "make cuda-check  compile what runs on GPUs, without one (downloads 1.3 GB once)"
	@echo "make gpu-test    train on GPUs beside the CPU, with the CUDA torch of python3"
	@echo "make gpu-bench   compare the speed of a step on a GPU with LibTorch's"
	@echo "make setup   install what is missing of packages and LibTorch"
	@echo "make lint    clang-format and clang-tidy on what changed"
	@echo "make format  rewrite our sources with clang-format"
	@echo "make clean   remove build/"

setup:
	@scripts/setup

build: setup
	@scripts/build $(PRESET)

test: build
	@scripts/run_tests $(PRESET)

train:
	@scripts/setup --train
	@scripts/build --train $(PRESET)
	@$(SHERD) run -n $(RANKS) -- $(SHERD) train --save-every 50 $(or $(ARGS),--steps 80)

bench: build
	@$(SHERD) bench step --ranks $(RANKS) $(ARGS)

soak: build
	@scripts/run_tests $(PRESET) slow

docs:
	@command -v doxygen >/dev/null || { echo "make docs: expected doxygen," \
	  "found none; install it: apt-get install doxygen" >&2; exit 1; }
	@mkdir -p build/docs
	@doxygen docs/Doxyfile
	@echo build/docs/html/index.html

wheel: setup
	@"$$(cat build/python)" -m pip wheel --no-deps --wheel-dir build/wheels .

cuda-check: setup
	@"$$(cat build/python)" scripts/cuda_check.py $(ARGS)

# Neither set-up nor network: for a machine with a GPU, a compiler and a PyTorch for CUDA.
gpu-test:
	@python3 scripts/cuda_check.py --installed python3 $(ARGS)
	@python3 scripts/cuda_check.py --installed python3 --program gpu_contract $(ARGS)

gpu-bench:
	@python3 scripts/cuda_check.py --installed python3 --program gpu_step $(ARGS)
	@python3 bench/gpu_fsdp2.py

format:
	@scripts/lint --fix

lint: build
	@scripts/lint

clean:
	rm -rf build
