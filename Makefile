# SPDX-License-Identifier: Apache-2.0
#
# make builds everything; make help lists the targets: text behind ## is printed.

prefix ?= /usr
libdir ?= $(prefix)/lib/carma
sysconfdir ?= /etc
SLURM_INCLUDE ?= /usr/include
# Slurm's own plugin directory: make install links the plugin into it.
SLURM_PLUGIN_DIR ?=

export GO ?= go
# go-nvml's generated calls use what newer NVML headers mark as deprecated.
export CGO_CFLAGS ?= -O2 -g -Wno-deprecated-declarations

# go and staticcheck want a cache, also where HOME is not set.
ifeq ($(HOME),)
export GOCACHE ?= $(shell getent passwd "$$(id -u)" | cut -d: -f6)/.cache/go-build
export GOPATH ?= $(shell getent passwd "$$(id -u)" | cut -d: -f6)/go
export STATICCHECK_CACHE ?= $(shell getent passwd "$$(id -u)" | cut -d: -f6)/.cache/staticcheck
endif

# make GOARCH=arm64 on another machine: by Debian's cross compiler (make deps-test-arm64), into build/arm64:
# the builds for the machine here stay.
ifeq ($(GOARCH)$(filter aarch64,$(shell uname -m)),arm64)
OUT = build/arm64/
export GOARCH
export CGO_ENABLED = 1
export CC = aarch64-linux-gnu-gcc
crossed = all commands libcarma shim spank simgpu lint-c install packages
ifneq ($(filter-out $(crossed),$(MAKECMDGOALS)),)
$(error With GOARCH=arm64 on a machine of another kind there are only: $(crossed))
endif
endif

HARDEN = -std=gnu11 -D_GNU_SOURCE -O2 -g -ffile-prefix-map=$(CURDIR)=. -fPIC -Wall -Wextra -Werror -D_FORTIFY_SOURCE=2 -fstack-protector-strong
HARDEN_LD = -Wl,-z,relro,-z,now,-z,noexecstack

PROGRESS = build/progress
STATICCHECK_VERSION = v0.8.2
STATICCHECK = build/staticcheck-$(STATICCHECK_VERSION)
ERRORLINT_VERSION = v1.8.0
ERRORLINT = build/go-errorlint-$(ERRORLINT_VERSION)

# What --version prints: the release, and the commit. A source archive has both in
# VERSION (.gitattributes); a checkout asks git.
VERSION ?= $(shell sed -n 's/^version //p' VERSION)
COMMIT := $(shell sed -n 's/^commit \([0-9a-f]\{10\}\).*/\1/p' VERSION)
ifeq ($(COMMIT),)
COMMIT := $(shell git rev-parse --short=10 HEAD 2>/dev/null)$(shell git diff --quiet HEAD 2>/dev/null || echo .changed)
endif
# When the commit was made: what is built from it says no other time.
EPOCH = $(or $(shell sed -n 's/^time \([0-9]\{1,\}\)$$/\1/p' VERSION),$(shell git log -1 --format=%ct 2>/dev/null))
BUILD_VERSION = $(VERSION)$(if $(filter-out .changed,$(COMMIT)),+g$(COMMIT))
LDFLAGS = -X carma/slurmbridge/version.text=$(BUILD_VERSION)

COMMANDS = carma-node carma-report carma-estimate carma-sim
# Python, run by the Python of the user's own environment, which has PyTorch.
TRACER = $(wildcard contrib/summary/carma_*.py)
SHIM = slurmbridge/shim
SHIM_SRC = $(addprefix $(SHIM)/,job_submit_carma.c ask.c text.c spank.c record.c worker.c whole.c queue.c library.c)

SPANK = slurmbridge/spank
SPANK_SRC = $(addprefix $(SPANK)/,spank_carma.c helper.c lines.c)

.PHONY: all commands libcarma shim spank simgpu deps demo test test-unit test-apart test-shim test-spank test-simgpu test-placement test-hooks \
	test-integration lint lint-c man gpu-kit install packages release clean help soak

all: commands libcarma shim spank simgpu ## everything, into bin/ and lib/

commands: ## carma-node, carma-report, carma-estimate, carma-sim
	@echo "build: $(OUT)bin/$(COMMANDS)"
	@$(GO) build -ldflags "$(LDFLAGS)" -o $(OUT)bin/ $(addprefix ./cmd/,$(COMMANDS))

libcarma: ## what slurmctld loads
	@echo "build: $(OUT)lib/libcarma.so"
	@$(GO) build -buildmode=c-shared -ldflags "$(LDFLAGS)" -o $(OUT)lib/libcarma.so ./slurmbridge/libcarma
	@rm -f $(OUT)lib/libcarma.h

# nodelete: slurmctld up to 23.11 unloads plugins, and the worker thread stays.
SHIM_OUT = $(OUT)lib/slurm/job_submit_carma.so
shim: $(SHIM_OUT) ## slurmctld's plugin, for the Slurm of SLURM_INCLUDE
$(SHIM_OUT): $(SHIM_SRC) $(wildcard $(SHIM)/*.h) $(SHIM)/job_submit_carma.lds slurmbridge/libcarma/carma.h build/version
	@echo "build: $@"
	@mkdir -p $(@D)
	@$(CC) -I$(SLURM_INCLUDE) -fsyntax-only -Wfatal-errors -x c $(SHIM)/job.h # says once that the headers are too old
	@$(CC) $(HARDEN) -DCARMA_VERSION='"$(BUILD_VERSION)"' -I$(SLURM_INCLUDE) -shared -o $@ $(SHIM_SRC) $(HARDEN_LD) -Wl,-z,nodelete \
		-Wl,--version-script=$(SHIM)/job_submit_carma.lds -ldl -lpthread

SPANK_OUT = $(OUT)lib/slurm/spank_carma.so
spank: $(SPANK_OUT) ## slurmstepd's plugin (plugstack.conf), where containers need one
$(SPANK_OUT): $(SPANK_SRC) $(SPANK)/spank.h $(SPANK)/spank_carma.lds
	@echo "build: $@"
	@mkdir -p $(@D)
	@$(CC) $(HARDEN) -DCARMA_TASK_PROLOG='"$(prefix)/sbin/carma-task-prolog"' -I$(SLURM_INCLUDE) -shared -o $@ $(SPANK_SRC) $(HARDEN_LD) \
		-Wl,--version-script=$(SPANK)/spank_carma.lds

# Written anew when the version is another.
build/version: FORCE
	@mkdir -p $(@D)
	@echo '$(BUILD_VERSION)' | cmp -s - $@ || echo '$(BUILD_VERSION)' >$@
FORCE:

simgpu: ## the simulated GPUs
	@echo "build: $(OUT)bin/simgpu $(OUT)bin/simjob $(OUT)lib/simgpu"
	@$(MAKE) --no-print-directory -C contrib/simgpu all $(if $(OUT),$(SIMGPU_OUT))
SIMGPU_OUT = BIN=$(CURDIR)/$(OUT)bin LIB=$(CURDIR)/$(OUT)lib/simgpu BUILD=$(CURDIR)/$(OUT)simgpu

# With go mod download, make demo and make test then work without the network.
deps: deps-demo deps-test $(STATICCHECK) $(ERRORLINT) ## what demo and test need; deps-TARGET: for one target; deps-list

deps-%:
	@contrib/deps.sh $*

demo: $(PROGRESS) ## a real Slurm with simulated GPUs, a dozen jobs, a report
	@contrib/demo.sh

# Shows what long targets do (contrib/progress).
$(PROGRESS): $(wildcard contrib/progress/*.go) go.mod
	@echo "build: $@"
	@$(GO) build -o $@ ./contrib/progress

# Tests of minutes that seldom fail are left to test-all, for CI. One after the other: lint and unit tests beside the
# tests on a live Slurm save little on two cores (873 s for 928), and on a slow machine Slurm's own timeouts pass.
test: export SHORT = -short
test: test-all ## what a change must pass: lint, unit tests, a real Slurm
test-all: $(PROGRESS) ## that, with the tests that take minutes
	@$(PROGRESS) make "make test$(if $(SHORT),,-all)" deps-test all lint test-unit test-apart test-integration

# The tests of prolog wait for half a minute, and so start first.
test-unit: deps-test-unit $(PROGRESS) ## go test ./...
	@$(PROGRESS) go $(SHORT) -p 3 -parallel 8 -timeout 60m ./prolog ./...

# One after the other, the five leave four fifths of two cores idle.
test-apart: deps-test-shim deps-test-spank deps-test-simgpu deps-test-hooks all ## test-shim, test-spank, test-simgpu, test-placement and test-hooks, side by side
	@$(MAKE) --no-print-directory -j 5 -O test-shim test-spank test-simgpu test-placement test-hooks

test-shim: deps-test-shim libcarma shim ## slurmctld's plugin in a host program, under the sanitizers; N= hostile jobs
	@$(SHIM)/check.sh $(CURDIR)/build/shim lib/slurm/job_submit_carma.so lib/libcarma.so

test-spank: deps-test-spank spank ## the SPANK plugin likewise; N= hostile outputs
	@$(SPANK)/check.sh $(CURDIR)/build/spank lib/slurm/spank_carma.so

test-simgpu: deps-test-simgpu ## the simulated GPUs
	@$(MAKE) --no-print-directory -C contrib/simgpu test

test-placement: simgpu ## many Prologs at once, killed at named places
	@$(GO) run ./contrib/bench/placement --rounds 6 --idle 1s

# The hooks with files, variables and run directories of every bad kind; the rest of contrib/abuse
# takes longer (make test-abuse).
test-hooks: deps-test-hooks commands simgpu $(PROGRESS) ## hooks with hostile variables and files, on broken nodes
	@$(PROGRESS) go $(AS_ROOT) -tags abuse -count=1 -timeout 60m -run '^TestAbuse(Hook.*|StdErr|BrokenNode)$$' -skip '/hangs$$' ./contrib/abuse

# On development clusters: a real slurmctld, slurmd and munge; as root, by sudo.
# Attacks of ordinary users are among the tests, in their short form.
# SLURM_PREFIX=/opt/slurm-23.11 takes a Slurm that contrib/versions/build.sh built.
# RUN='TestSteps|TestRestarts' takes some of the tests. REAL_MPS=yes takes NVIDIA's own MPS
# control daemon, as root; tests whose jobs need an MPS server are skipped.
test-integration: deps-test-integration all $(PROGRESS) ## tests on a real Slurm, as root by sudo; RUN= takes some
	@[ -z "$(REAL_MPS)" ] || contrib/simgpu/fetch-mps.sh >/dev/null
	@$(PROGRESS) go $(AS_ROOT) $(SHORT) -tags integration -count=1 -parallel 8 -timeout 60m $(if $(RUN),-run '^($(RUN))$$') ./contrib/devcluster

AS_ROOT = $(if $(filter-out 0,$(shell id -u)),-exec "'$(CURDIR)/contrib/as_root.sh'")
export SLURM_PREFIX

# Long tests and benchmarks: contrib/long.sh has a case for each.
test-%: FORCE
	@contrib/long.sh $@

bench-%: FORCE
	@contrib/long.sh $@

soak: test-soak

# An archive for half an hour on a machine with an NVIDIA GPU and nothing else
# (contrib/gpucheck/README.md). Built on Debian 12 it runs there and on later ones.
gpu-kit: deps-gpu-kit commands libcarma shim spank build/gpu-kit/gpucheck build/gpu-kit/gpuload ## build/gpu-kit.tar.gz
	@contrib/gpucheck/kit.sh build/gpu-kit.tar.gz

build/gpu-kit/gpucheck: FORCE
	@mkdir -p $(@D)
	@$(GO) build -ldflags "$(LDFLAGS)" -o $@ ./contrib/gpucheck

build/gpu-kit/gpuload: contrib/gpucheck/load/gpuload.c
	@mkdir -p $(@D)
	@$(CC) $(HARDEN) -o $@ $< -ldl

# It asks for a newer Go than CARMA does, which the go command then fetches.
$(STATICCHECK):
	@echo "build: $@"
	@mkdir -p build/tools
	@GOTOOLCHAIN=auto GOBIN=$(CURDIR)/build/tools $(GO) install honnef.co/go/tools/cmd/staticcheck@$(STATICCHECK_VERSION)
	@mv build/tools/staticcheck $@

# Errors are wrapped in CARMA, so == and type assertions on them miss.
$(ERRORLINT):
	@echo "build: $@"
	@mkdir -p build/tools
	@GOTOOLCHAIN=auto GOBIN=$(CURDIR)/build/tools $(GO) install github.com/polyfloyd/go-errorlint@$(ERRORLINT_VERSION)
	@mv build/tools/go-errorlint $@

# Names that codespell takes for words, in any release of it, and words of the MPS server's log.
NO_MISSPELLINGS = aer,mape,launchs,froms,iif,atleast,neast,nknown,startin,windo,deamon,exemptin,keepin,publishs,answerin,mappin,nodel,namd,recevie,trigging

lint: deps-lint $(STATICCHECK) $(ERRORLINT) ## gofmt, vet, staticcheck, errorlint, codespell, govulncheck, shellcheck, gcc
	@echo "lint: gofmt, go vet"
	@test -z "$$(gofmt -l .)" || { echo "gofmt would change:"; gofmt -l .; exit 1; }
	@$(GO) vet ./...
	@$(GO) vet -tags 'integration situations forecast containers mps pages' ./contrib/devcluster ./contrib/simgpu ./gres/mps ./cmd/carma-report
	@$(GO) vet -tags 'integration abuse' ./contrib/devcluster ./contrib/abuse
	@$(GO) vet -tags abuse ./contrib/devcluster
	@echo "lint: staticcheck, errorlint"
	@$(STATICCHECK) ./...
	@$(STATICCHECK) -tags integration,situations,forecast,containers,mps ./contrib/devcluster ./contrib/simgpu ./gres/mps
	@$(ERRORLINT) ./...
	@echo "lint: codespell, links, imports"
	@git ls-files | grep -v 'testdata\|go\.sum' | xargs codespell --quiet-level 3 --ignore-words-list $(NO_MISSPELLINGS)
	@$(GO) test ./docs -run 'TestLinks|TestCommands|TestMakeAndDevcluster|TestImports|TestPure|TestSlurmWords|TestLayers'
	@echo "lint: govulncheck"
	@contrib/vulncheck.sh
	@echo "lint: shellcheck, gcc -fanalyzer"
	@shellcheck -x -P contrib/devcluster -P contrib/versions -P contrib/newadmin contrib/devcluster/devcluster contrib/simgpu/*.sh contrib/gpucheck/*.sh contrib/gpucheck/run contrib/newadmin/*.sh contrib/cgroup2/*.sh contrib/*.sh contrib/versions/*.sh contrib/containers/*.sh contrib/packages/*.sh contrib/packages/*.p* contrib/systemd/carma-health $(SHIM)/*.sh $(SPANK)/*.sh .ci/run
	@$(MAKE) --no-print-directory lint-c

# -fsyntax-only ends before -fanalyzer begins.
LINT_C = contrib/gpucheck/load/gpuload.c $(SHIM_SRC) $(SPANK_SRC) $(wildcard contrib/devcluster/testdata/*.c) \
	prolog/userfile/credentials.c contrib/cgroup2/xstate.c $(wildcard contrib/simgpu/src/*.c)
lint-c:
	@for f in $(LINT_C); do $(CC) $(HARDEN) -fanalyzer -I$(SLURM_INCLUDE) -c -o /dev/null $$f || exit 1; done

man: commands ## manual pages, from docs/man/*.md and the programs' own help
	docs/man/make.sh

install: all ## copy to $(DESTDIR)$(prefix); edits nobody's slurm.conf
	install -d $(DESTDIR)$(prefix)/bin $(DESTDIR)$(prefix)/sbin $(DESTDIR)$(libdir)/slurm $(DESTDIR)$(prefix)/share/carma
	install -m 755 $(addprefix $(OUT)bin/,carma-report carma-estimate carma-sim) $(DESTDIR)$(prefix)/bin/
	install -m 755 $(OUT)bin/carma-node $(DESTDIR)$(prefix)/sbin/
	for h in prolog task-prolog epilog; do ln -sf carma-node $(DESTDIR)$(prefix)/sbin/carma-$$h; done
	install -d $(DESTDIR)$(prefix)/share/carma/python
	install -m 644 $(TRACER) $(DESTDIR)$(prefix)/share/carma/python/
	chmod 755 $(addprefix $(DESTDIR)$(prefix)/share/carma/python/,carma_trace.py carma_summary.py)
	for c in trace summary; do ln -sf ../share/carma/python/carma_$$c.py $(DESTDIR)$(prefix)/bin/carma-$$c; done
	install -m 644 $(OUT)lib/libcarma.so $(DESTDIR)$(libdir)/
	install -m 644 $(SHIM_OUT) $(SPANK_OUT) $(DESTDIR)$(libdir)/slurm/
	$(if $(SLURM_PLUGIN_DIR),install -d $(DESTDIR)$(SLURM_PLUGIN_DIR) && ln -sf $(libdir)/slurm/job_submit_carma.so $(DESTDIR)$(SLURM_PLUGIN_DIR)/)
	for s in 1 5 7 8; do install -d $(DESTDIR)$(prefix)/share/man/man$$s; install -m 644 docs/man/*.$$s $(DESTDIR)$(prefix)/share/man/man$$s/; done
	install -d $(DESTDIR)$(prefix)/share/bash-completion/completions $(DESTDIR)$(prefix)/share/zsh/vendor-completions $(DESTDIR)$(prefix)/share/fish/vendor_completions.d
	for c in carma-report carma-estimate carma-node carma-trace carma-summary; do \
		install -m 644 contrib/completions/$$c.bash $(DESTDIR)$(prefix)/share/bash-completion/completions/$$c; \
		install -m 644 contrib/completions/$$c.zsh $(DESTDIR)$(prefix)/share/zsh/vendor-completions/_$$c; \
		install -m 644 contrib/completions/$$c.fish $(DESTDIR)$(prefix)/share/fish/vendor_completions.d/$$c.fish; \
	done
	install -d $(DESTDIR)$(prefix)/lib/systemd/system $(DESTDIR)$(prefix)/lib/tmpfiles.d $(DESTDIR)$(sysconfdir)/logrotate.d
	install -m 644 contrib/slurm/*.toml contrib/slurm/*.conf contrib/grafana/carma.json contrib/prometheus/carma.rules.yml $(DESTDIR)$(prefix)/share/carma/
	install -m 755 contrib/systemd/carma-health $(DESTDIR)$(prefix)/share/carma/
	install -m 644 contrib/systemd/carma-node.service contrib/systemd/carma-history.service contrib/systemd/carma-history.timer $(DESTDIR)$(prefix)/lib/systemd/system/
	install -m 644 contrib/systemd/tmpfiles.conf $(DESTDIR)$(prefix)/lib/tmpfiles.d/carma.conf
	install -m 644 contrib/systemd/logrotate.conf $(DESTDIR)$(sysconfdir)/logrotate.d/carma-node

PACKAGED = $(or $(OUT),build/)
packages: ## deb and rpm in build/packages, for the Slurm of SLURM_INCLUDE; GOARCH=arm64: in build/arm64
	rm -rf $(PACKAGED)stage $(PACKAGED)packages
	$(MAKE) install DESTDIR=$(CURDIR)/$(PACKAGED)stage prefix=/usr libdir=/usr/lib/carma sysconfdir=/etc
	GO="$(GO)" $(if $(EPOCH),SOURCE_DATE_EPOCH=$(EPOCH)) contrib/packages/build.sh $(PACKAGED)stage $(PACKAGED)packages $(VERSION)

# dist/: the source archive, the packages of Debian 12 and 13 and Ubuntu 24.04, each built from that
# archive in a new root of its own, RPMs, checksums, and what is linked under which licence. As root.
release: deps-release ## dist/: source archive, deb and rpm for amd64 and arm64, checksums, licences
	contrib/release.sh root dist

clean: ## remove what was built
	rm -rf bin lib build dist
	$(MAKE) -C contrib/simgpu clean

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(firstword $(MAKEFILE_LIST)) | expand -t 18
	@contrib/long.sh --list
