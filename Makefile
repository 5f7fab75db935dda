# Verbs. The build itself is CMake + Ninja in build/; this file only names what people do.
BUILD ?= build
TYPE  ?= RelWithDebInfo
CUDA  ?= 0
JOBS  ?= $(shell nproc)
CMAKE_ARGS = -G Ninja -DCMAKE_BUILD_TYPE=$(TYPE) -DLK_CUDA=$(if $(filter 1,$(CUDA)),ON,OFF) $(if $(ARCHS),-DLK_CUDA_ARCHS="$(ARCHS)")

all: setup-build ## build build/laoka (CUDA=1: with the GPU backend; ARCHS="80;90": for these cards beside Volta)
	@cmake -S . -B $(BUILD) $(CMAKE_ARGS) >$(BUILD).log 2>&1 || { cat $(BUILD).log; rm -f $(BUILD).log; exit 1; }; rm -f $(BUILD).log
	@cmake --build $(BUILD) -j $(JOBS) $(TARGET)

setup: ## install what is missing for building and testing (Debian, Ubuntu)
	@tools/setup build test

setup-build:
	@tools/setup build

demo: TARGET = --target laoka
demo: all ## set up, build, and answer a question with the bundled model
	@$(BUILD)/laoka run -p 'What does "lighthouse" mean?' --think off --temp 0 --max-tokens 64

check: setup all ## set up, build and run all tests
	@tools/check-includes
	@tools/check $(BUILD)

soak: all ## the engine's long tests: 5,000 random cases, the whole table of equal answers (SEED=N)
	@tools/soak $(BUILD) $(SEED)

help: ## this list
	@grep -hE '^[a-z-]+:.*##' Makefile | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 24

SAN := -G Ninja -DCMAKE_BUILD_TYPE=Debug -DCMAKE_C_FLAGS_DEBUG="-O1 -g" -DLK_SAN=address,undefined
asan: setup ## all C tests under AddressSanitizer and UBSan; the op tests once more with every check in the kernels
	@cmake -S . -B build-asan $(SAN) >/dev/null && cmake -S . -B build-asan-kernels $(SAN) -DLK_SAN_KERNELS=ON >/dev/null
	@cmake --build build-asan -j $(JOBS) && ctest --test-dir build-asan --output-on-failure --timeout 1800
	@cmake --build build-asan-kernels -j $(JOBS) -t test_ops test_rough && ctest --test-dir build-asan-kernels -R '^ops/' --output-on-failure --timeout 3600
ubsan: asan ## the same run: both sanitizers live together
tsan: setup ## the C tests under ThreadSanitizer
	@cmake -S . -B build-tsan -G Ninja -DCMAKE_BUILD_TYPE=Debug -DLK_SAN=thread >/dev/null
	@cmake --build build-tsan -j $(JOBS) && ctest --test-dir build-tsan --output-on-failure

FUZZ_SECONDS ?= 60
fuzz: setup ## each fuzz target for FUZZ_SECONDS
	@tools/fuzz build-fuzz $(FUZZ_SECONDS)

e2e-long: setup all ## the long forms of the server's tests: 2,000 fuzzed requests, 300 pairs, faults, 64 clients for 10 minutes
	@LK_LONG=1 LAOKA="$(CURDIR)/$(BUILD)/laoka" .venv-check/bin/pytest -q -s tests/e2e/test_openapi.py tests/e2e/test_same.py tests/e2e/test_faults.py

reference: setup ## re-make the stored reference vectors with PyTorch and transformers, and compare
	@tests/reference/run

bench: all ## speed of decode and prefill, with the bandwidth beside it
	@tools/bench $(BUILD)

format: ## clang-format over C and CUDA sources
	@tools/setup format
	@git ls-files '*.c' '*.h' '*.cu' '*.cuh' | xargs clang-format -i

clean: ## remove build folders
	@rm -rf build build-*

.PHONY: all setup setup-build demo check soak help asan ubsan tsan fuzz e2e-long reference bench format clean
