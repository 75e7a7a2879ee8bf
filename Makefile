# The front end of the repository. Each target first installs the packages that are missing (tools/install-packages),
# then calls a CMake preset or a script of tools/.
PREFIX ?= /usr/local
BENCH_ARGS ?=
# Five tests at a time: while some wait for a deadline or a host, another computes.
CTEST = ctest --test-dir build --output-on-failure -j 5

.DEFAULT_GOAL := build
.PHONY: build tests demo test check asan ubsan tsan fuzz soak lint format bench bench-comm install clean help test-packages

build: ## the library, the command and the examples, optimised, into build/
	@tools/install-packages build
	@cmake --preset release >/dev/null
	@cmake --build --preset release

demo: build ## two ranks train the MNIST classifier on real data
	@tools/demo

test-packages:
	@tools/install-packages build test
	@tools/find-data >/dev/null || tools/install-packages data

tests: test-packages build ## builds the tests without running them, for ctest --test-dir build -R name
	@cmake --build --preset release --target tests

test: tests ## all tests
	@$(CTEST)

check: tests ## the quick tests: no real processes, nothing labelled slow
	@$(CTEST) --label-exclude '^slow$$'

asan: test-packages ## the tests under AddressSanitizer, LeakSanitizer and UndefinedBehaviorSanitizer
	@tools/sanitize asan

ubsan: test-packages ## the tests under UndefinedBehaviorSanitizer alone
	@tools/sanitize ubsan

tsan: test-packages ## the tests under ThreadSanitizer
	@tools/sanitize tsan

fuzz: ## each fuzz target of tests/fuzz for ten seconds (FUZZ_SECONDS=n)
	@tools/install-packages build lint
	@tools/install-packages fuzz || true # in older releases clang contains it; without it, run_fuzz reports that it skips
	@tests/fuzz/run_fuzz $(or $(FUZZ_SECONDS),10)

soak: tests ## 200 lost ranks, 50 training runs that lose a rank or a host, each fuzz target for ten minutes
	@LOCKSTEP_SOAK=200 build/tests/test_comm_soak
	@LOCKSTEP_SOAK=50 bash tests/system/test_survive.sh build
	@tools/install-packages lint
	@tools/install-packages fuzz || true
	@tests/fuzz/run_fuzz 600

lint: ## formatting, warnings of gcc and clang, static analysis, layers, exported names
	@tools/install-packages build test lint
	@tools/lint

format: ## formats all sources by .clang-format
	@tools/install-packages lint
	@clang-format -i $$(git ls-files -co --exclude-standard '*.c' '*.h' '*.cc')
	@for f in $$(git ls-files -co --exclude-standard '*.cu' '*.cuh'); do clang-format --assume-filename=x.cc <$$f >$$f.new && mv $$f.new $$f; done

bench: build ## step times against PyTorch, side by side (BENCH_ARGS: see bench/train.py --help)
	@tools/install-packages bench
	@tools/find-data >/dev/null || tools/install-packages data
	@python3 bench/train.py $(BENCH_ARGS)

bench-comm: build ## collectives against Open MPI, MPICH and Gloo, side by side (BENCH_ARGS: see bench/comm.py --help)
	@tools/install-packages bench-comm
	@python3 bench/comm.py $(BENCH_ARGS)

install: build ## installs under PREFIX (/usr/local), with DESTDIR
	@[ -n "$(PREFIX)" ] || { echo "make install: PREFIX is empty" >&2; exit 1; }
	@cmake --preset release -DCMAKE_INSTALL_PREFIX="$$(realpath -m -- "$(PREFIX)")" >/dev/null
	@cmake --build --preset release
	@# CMake lists the files there. If root has written it, this user can remove it, not write to it.
	@rm -f build/install_manifest.txt
	@cmake --install build
	@rm -f build/install_manifest.txt
	@[ -n "$(DESTDIR)" ] || [ "$$(id -u)" != 0 ] || ldconfig

clean: ## removes all build directories
	@rm -rf build build-*

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' Makefile
