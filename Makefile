# SPDX-License-Identifier: Apache-2.0
#
# make          build everything into bin/ and lib/
# make demo     a real Slurm with simulated GPUs, a dozen jobs, a report
# make test     every test, the live cluster's included
# make install  copy to $(DESTDIR)$(prefix); edits nobody's slurm.conf

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
SHIM_SRC = $(addprefix $(SHIM)/,job_submit_carma.c text.c spank.c record.c worker.c queue.c library.c)

SPANK = slurmbridge/spank
SPANK_SRC = $(addprefix $(SPANK)/,spank_carma.c helper.c lines.c)

.PHONY: all commands libcarma shim spank simgpu deps deps-list demo test test-unit test-trace test-shim test-spank test-simgpu test-placement test-hooks \
	test-integration test-situations test-containers test-cgroup2 test-confine-kill test-debian12 test-debian13 test-surroundings test-abuse soak test-versions packages packages-to-try release \
	test-release test-packages test-newadmin test-ansible gpu-kit gpu-check test-gpu-kit test-mps lint man bench bench-day bench-estimator bench-placement bench-scale bench-sim install clean

all: commands libcarma shim spank simgpu

commands:
	@echo "build: bin/$(COMMANDS)"
	@$(GO) build -ldflags "$(LDFLAGS)" -o bin/ $(addprefix ./cmd/,$(COMMANDS))

libcarma:
	@echo "build: lib/libcarma.so"
	@$(GO) build -buildmode=c-shared -ldflags "$(LDFLAGS)" -o lib/libcarma.so ./slurmbridge/libcarma
	@rm -f lib/libcarma.h

# nodelete: slurmctld up to 23.11 unloads plugins, and the worker thread stays.
SHIM_OUT = lib/slurm/job_submit_carma.so
shim: $(SHIM_OUT)
$(SHIM_OUT): $(SHIM_SRC) $(wildcard $(SHIM)/*.h) $(SHIM)/job_submit_carma.lds slurmbridge/libcarma/carma.h build/version
	@echo "build: $@"
	@mkdir -p $(@D)
	@$(CC) $(HARDEN) -DCARMA_VERSION='"$(BUILD_VERSION)"' -I$(SLURM_INCLUDE) -shared -o $@ $(SHIM_SRC) $(HARDEN_LD) -Wl,-z,nodelete \
		-Wl,--version-script=$(SHIM)/job_submit_carma.lds -ldl -lpthread

# The plugin for slurmstepd (plugstack.conf), where containers need one.
SPANK_OUT = lib/slurm/spank_carma.so
spank: $(SPANK_OUT)
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

simgpu:
	@echo "build: bin/simgpu bin/simjob lib/simgpu"
	@$(MAKE) --no-print-directory -C contrib/simgpu all

# What the README's two commands need beside what it names, from the network;
# with go mod download they then work without. deps-TARGET: for one target.
deps: deps-demo deps-test $(STATICCHECK) $(ERRORLINT)

deps-list:
	@contrib/deps.sh --list

deps-%:
	@contrib/deps.sh $*

demo: $(PROGRESS)
	@contrib/demo.sh

# Shows what long targets do (contrib/progress).
$(PROGRESS): $(wildcard contrib/progress/*.go) go.mod
	@echo "build: $@"
	@$(GO) build -o $@ ./contrib/progress

test: $(PROGRESS)
	@$(PROGRESS) make "make test" deps-test all lint test-unit test-shim test-spank test-simgpu test-placement test-hooks test-integration

test-unit: deps-test-unit $(PROGRESS)
	@$(PROGRESS) go ./...

# The job_submit shim in a host program, under the sanitizers. N hostile jobs.
test-shim: deps-test-shim libcarma shim
	@$(SHIM)/check.sh $(CURDIR)/build/shim lib/slurm/job_submit_carma.so lib/libcarma.so

# The SPANK plugin in a host program, under the sanitizers. N hostile outputs.
test-spank: deps-test-spank spank
	@$(SPANK)/check.sh $(CURDIR)/build/spank lib/slurm/spank_carma.so

test-simgpu: deps-test-simgpu
	@$(MAKE) --no-print-directory -C contrib/simgpu test

# The contract of an MPS control daemon (contrib/simgpu/mps_contract_test.go), which
# make test-unit holds the stand-in to, on the real daemons of 535 and 550. These are
# fetched from Debian's non-free into a cache outside of the repository.
# The development cluster runs with that of 550, then.
test-mps: deps-test-mps all
	@MPS_REAL=$$(contrib/simgpu/fetch-mps.sh) || { MPS_REAL=; echo "test-mps: the real daemons could not be fetched: SKIPPED"; }; \
		export MPS_REAL; $(GO) test $(AS_ROOT) -tags mps -count=1 -v -run 'TestMPS.*Contract' ./contrib/simgpu ./gres/mps && \
		{ [ -z "$$MPS_REAL" ] || $(GO) test $(AS_ROOT) -tags 'integration mps' -count=1 -v -run 'TestRealMPS$$' ./contrib/devcluster; }

test-placement: simgpu
	@$(GO) run ./contrib/bench/placement --rounds 6 --idle 1s

# The tracer of contrib/summary, which needs PyTorch 2: Debian 13 has it. Public training scripts
# are fetched; TRACE_GIT names where, if github.com is out of reach.
test-trace: deps-test-trace
	@python3 contrib/summary/test_carma_trace.py
	@python3 contrib/summary/test_carma_overlay.py
	@python3 contrib/summary/test_carma_command.py
	@python3 contrib/summary/test_public_scripts.py

# The hooks with files, variables and run directories of every bad kind; the rest of contrib/abuse
# takes longer (make test-abuse).
test-hooks: deps-test-hooks commands simgpu $(PROGRESS)
	@$(PROGRESS) go $(AS_ROOT) -tags abuse -count=1 -run '^TestAbuse(Hook.*|StdErr|BrokenNode)$$' -skip '/hangs$$' ./contrib/abuse

# On development clusters: a real slurmctld, slurmd and munge; as root, by sudo.
# Attacks of ordinary users are among the tests, in their short form.
# SLURM_PREFIX=/opt/slurm-23.11 takes a Slurm that contrib/versions/build.sh built.
# RUN='TestSteps|TestArray' takes some of the tests. REAL_MPS=yes takes NVIDIA's own MPS
# control daemon, as root; tests whose jobs need an MPS server are skipped.
test-integration: deps-test-integration all $(PROGRESS)
	@[ -z "$(REAL_MPS)" ] || contrib/simgpu/fetch-mps.sh >/dev/null
	@$(PROGRESS) go $(AS_ROOT) -tags integration -count=1 -parallel 4 -timeout 40m $(if $(RUN),-run '^($(RUN))$$') ./contrib/devcluster

# Those of them that cgroup v2 matters to, in a Debian 13 with cgroup v2 alone, booted
# under user-mode-linux; root makes it: minutes, and the first time the network.
test-cgroup2: deps-test-cgroup2 all
	@contrib/cgroup2/run.sh '$(or $(RUN),TestConfine$$|TestConfineBesideOthers$$|TestConfineRemoved$$|TestOwners$$|TestNFSHome$$|TestClockJumps$$|TestMemoryHeld$$)'

AS_ROOT = $(if $(filter-out 0,$(shell id -u)),-exec "'$(CURDIR)/contrib/as_root.sh'")
export SLURM_PREFIX

# Situations that take longer than 20 s each (docs/situations.md); RUN and
# SLURM_PREFIX as above.
test-situations: deps-test-situations all $(PROGRESS)
	@$(PROGRESS) go $(AS_ROOT) -tags 'integration situations' -count=1 -parallel 4 -timeout 60m -run '^($(or $(RUN),TestSituation.*))$$' ./contrib/devcluster

# Jobs in containers: pyxis with enroot, and Apptainer, built from their public sources, Slurm's
# own with crun, and podman. ENROOT_GIT, PYXIS_GIT and APPTAINER_GIT name clones, where github.com
# is out of reach.
test-containers: deps-test-containers all $(PROGRESS)
	@$(PROGRESS) go $(AS_ROOT) -tags 'integration containers' -count=1 -timeout 40m -run '^(TestPyxis|TestApptainer|TestContainerOCI|TestPodman)$$' ./contrib/devcluster

# Both commands of the README in a new Debian with nothing but what the README
# names (root makes it). CI runs a part of this for Debian 13 (.ci/run).
test-debian12: deps-test-debian12
	@contrib/bare.sh bookworm user 'make demo' user 'make test'

test-debian13: deps-test-debian13
	@contrib/bare.sh trixie user 'make demo' user 'make test'

# COMMAND in each of the surroundings that contrib/surroundings.sh names, in a new
# Debian 12 and 13: hours for all of make test. SURROUNDINGS=tmpfs,locale takes some of them.
SURROUNDINGS ?= all
COMMAND ?= make test
test-surroundings: deps-test-surroundings
	for debian in bookworm trixie; do contrib/bare.sh $$debian root 'make deps deps-test-surroundings all && go mod download && \
		GOFLAGS=-count=1 contrib/surroundings.sh $(SURROUNDINGS) "$(COMMAND)"' user '$(COMMAND)' || exit 1; done

# The shim against the headers of other releases of Slurm: VERSIONS="23.11 24.05".
# SLURM_GIT names a clone of Slurm's source, if there is one.
test-versions: libcarma
	contrib/versions/shim.sh $(VERSIONS)

# Attacks of a hostile user, of broken disks and of killed processes, and their
# figures: an hour. docs/threat-model.md names what each shows. TASKS, PAIRS,
# SUBMISSIONS, RECONFIGURES and N make a run shorter or longer.
test-abuse: deps-test-abuse all
	N=$${N:-1000000} $(MAKE) test-shim
	$(GO) test -tags abuse -count=1 -parallel 1 -v -timeout 30m ./contrib/abuse
	$(GO) test -tags abuse -count=1 -parallel 1 -v -timeout 90m -run TestAbuse ./contrib/devcluster
	$(GO) test -tags 'integration abuse' -count=1 -parallel 1 -v -timeout 90m -run TestAttack ./contrib/devcluster

# Confinement with CONFINE_JOBS starts beside programs that open everything, and with every
# process that makes it killed at random; cgroup v1.
test-confine-kill: deps-test-confine-kill all
	$(GO) test -tags 'integration abuse' -count=1 -parallel 1 -v -timeout 90m -run 'TestConfineKilled$$|TestConfineManyStarts$$' ./contrib/devcluster

# Two nodes, eight simulated GPUs, a fault for every hundred jobs. HOURS=24 before
# a release; without it ten minutes and 2,000 jobs.
soak: deps-soak all
	SOAK_MINUTES=$(if $(HOURS),$$(( $(HOURS) * 60 )),10) $(GO) test -tags abuse -count=1 -parallel 1 -v -timeout 0 -run TestSoak ./contrib/devcluster

# An archive for half an hour on a machine with an NVIDIA GPU and nothing else
# (contrib/gpucheck/README.md). Built on Debian 12 it runs there and on later ones.
gpu-kit: deps-gpu-kit commands libcarma shim spank build/gpu-kit/gpucheck build/gpu-kit/gpuload
	@contrib/gpucheck/kit.sh build/gpu-kit.tar.gz

build/gpu-kit/gpucheck: FORCE
	@mkdir -p $(@D)
	@$(GO) build -ldflags "$(LDFLAGS)" -o $@ ./contrib/gpucheck

build/gpu-kit/gpuload: contrib/gpucheck/load/gpuload.c
	@mkdir -p $(@D)
	@$(CC) $(HARDEN) -o $@ $< -ldl

# The kit's parts on simulated GPUs, in a bare Debian 12 and an Ubuntu 22.04 without a
# network, and killed at random moments: minutes. ROOTS=host takes this machine's own root.
test-gpu-kit: deps-test-gpu-kit gpu-kit simgpu
	contrib/gpucheck/rehearse.sh build/gpu-kit.tar.gz $(or $(ROOTS),bookworm jammy)

# Its short form without Slurm, as root on a machine with an NVIDIA GPU that nothing else
# uses. It ends with 3 where there is no GPU, which make shows as "Error 3".
gpu-check: build/gpu-kit/gpucheck build/gpu-kit/gpuload
	@mkdir -p build/gpu-check/bin build/gpu-check/share
	@cp build/gpu-kit/gpucheck build/gpu-kit/gpuload build/gpu-check/bin/
	@cp contrib/gpucheck/trainings.py build/gpu-check/share/
	build/gpu-check/bin/gpucheck --short --results build/gpu-check.jsonl facts limits frameworks readings start throughput

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

# Names that codespell takes for words.
NO_MISSPELLINGS = mape,launchs,froms,iif,atleast,neast,nknown,startin,windo,deamon,exemptin,keepin,publishs,answerin,mappin,nodel

lint: deps-lint $(STATICCHECK) $(ERRORLINT)
	@echo "lint: gofmt, go vet"
	@test -z "$$(gofmt -l .)" || { echo "gofmt would change:"; gofmt -l .; exit 1; }
	@$(GO) vet ./...
	@$(GO) vet -tags integration ./contrib/devcluster
	@$(GO) vet -tags 'integration situations' ./contrib/devcluster
	@$(GO) vet -tags 'integration containers' ./contrib/devcluster
	@$(GO) vet -tags abuse ./contrib/devcluster ./contrib/abuse
	@$(GO) vet -tags 'mps integration' ./contrib/simgpu ./contrib/devcluster
	@echo "lint: staticcheck, errorlint"
	@$(STATICCHECK) ./...
	@$(STATICCHECK) -tags integration,situations,containers,mps ./contrib/devcluster ./contrib/simgpu ./gres/mps
	@$(ERRORLINT) ./...
	@echo "lint: codespell, links, imports"
	@git ls-files | grep -v 'testdata\|go\.sum' | xargs codespell --quiet-level 3 --ignore-words-list $(NO_MISSPELLINGS)
	@$(GO) test ./docs -run 'TestLinks|TestCommands|TestMakeAndDevcluster|TestImports|TestPure|TestSlurmWords|TestLayers'
	@echo "lint: govulncheck"
	@contrib/vulncheck.sh
	@echo "lint: shellcheck, gcc -fanalyzer"
	@shellcheck -x -P contrib/devcluster -P contrib/versions -P contrib/newadmin contrib/devcluster/devcluster contrib/simgpu/*.sh contrib/gpucheck/*.sh contrib/gpucheck/run contrib/newadmin/*.sh contrib/cgroup2/*.sh contrib/*.sh contrib/versions/*.sh contrib/containers/*.sh contrib/packages/*.sh contrib/packages/*.p* contrib/systemd/carma-health $(SHIM)/*.sh $(SPANK)/*.sh .ci/run
	@$(CC) $(HARDEN) -fanalyzer -fsyntax-only contrib/gpucheck/load/gpuload.c
	@$(CC) $(HARDEN) -fanalyzer -fsyntax-only -I$(SLURM_INCLUDE) $(SHIM_SRC) $(SPANK_SRC) contrib/devcluster/testdata/*.c
	@$(CC) $(HARDEN) -fanalyzer -fsyntax-only prolog/userfile/credentials.c contrib/cgroup2/xstate.c

# Manual pages, from docs/man/*.md and the programs' own help.
man: commands
	docs/man/make.sh

bench:
	$(GO) test -run '^$$' -bench . ./...

# The estimator's figures on measured rows, where $CARMA_DATA has them (by default data). TRACES names a
# folder of traces by contrib/bench/estimator/timm_traces.py.
bench-estimator:
	$(GO) run ./contrib/bench/estimator $(if $(TRACES),$${CARMA_DATA:-data}/memory $(TRACES))

# What policies are worth on traces (docs/bench/sim.md); five minutes.
bench-sim: commands
	contrib/bench-sim.sh

# Prologs at once, killed at named places; the ledger's log checked.
bench-placement: simgpu
	$(GO) run ./contrib/bench/placement

# When large jobs start on a synthetic day, without CARMA and with it (contrib/bench/day), on the
# development cluster; as root, 40 minutes. DAY="--nodes 48 --length 6m --only none,exclusive".
bench-day: all
	$(GO) run ./contrib/bench/day $(DAY)

# What agents cost slurmctld on 1,000 and 5,000 nodes (contrib/bench/scale), on a cluster of its
# own with a few real slurmds; as root. SCALE="--nodes 1000 --starts 5".
bench-scale: deps-bench-scale
	$(GO) run ./contrib/bench/scale $(SCALE)

install: all
	install -d $(DESTDIR)$(prefix)/bin $(DESTDIR)$(prefix)/sbin $(DESTDIR)$(libdir)/slurm $(DESTDIR)$(prefix)/share/carma
	install -m 755 bin/carma-report bin/carma-estimate bin/carma-sim $(DESTDIR)$(prefix)/bin/
	install -m 755 bin/carma-node $(DESTDIR)$(prefix)/sbin/
	for h in prolog task-prolog epilog; do ln -sf carma-node $(DESTDIR)$(prefix)/sbin/carma-$$h; done
	install -d $(DESTDIR)$(prefix)/share/carma/python
	install -m 644 $(TRACER) $(DESTDIR)$(prefix)/share/carma/python/
	chmod 755 $(addprefix $(DESTDIR)$(prefix)/share/carma/python/,carma_trace.py carma_summary.py)
	for c in trace summary; do ln -sf ../share/carma/python/carma_$$c.py $(DESTDIR)$(prefix)/bin/carma-$$c; done
	install -m 644 lib/libcarma.so $(DESTDIR)$(libdir)/
	install -m 644 lib/slurm/job_submit_carma.so lib/slurm/spank_carma.so $(DESTDIR)$(libdir)/slurm/
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

# deb and rpm in build/packages. They are for the Slurm of SLURM_INCLUDE.
packages:
	rm -rf build/stage build/packages
	$(MAKE) install DESTDIR=$(CURDIR)/build/stage prefix=/usr libdir=/usr/lib/carma sysconfdir=/etc
	GO="$(GO)" $(if $(EPOCH),SOURCE_DATE_EPOCH=$(EPOCH)) contrib/packages/build.sh build/stage build/packages $(VERSION)

# dist/: the source archive, the packages of Debian 12 and 13, each built from that
# archive in a new root of its own, checksums, and what is linked under which licence.
# test-release builds it twice, as different users, and compares the bytes. As root.
release: deps-release
	contrib/release.sh root dist

test-release: deps-release
	contrib/release.sh --twice build/release

# The Debian that the packages are tried on: this machine's, or DEBIAN=bookworm or
# trixie, in a new root of which they are then built.
HOST := $(shell . /etc/os-release && echo $$VERSION_CODENAME)
export DEBIAN ?= $(HOST)
ifeq ($(DEBIAN),$(HOST))
PACKAGES = build/packages
packages-to-try: packages
else
PACKAGES = build/packages-$(DEBIAN)
packages-to-try: deps-release all
	contrib/bare.sh --keep build/packages $(PACKAGES) $(DEBIAN) root 'make deps-all packages'
endif

# Install, upgrade, remove and purge them on a scratch root.
ifeq ($(DEBIAN),$(HOST))
test-packages: deps-test-packages packages
	contrib/packages/check.sh build/packages build/stage
	contrib/packages/check-rpm.sh build/packages
else
test-packages: deps-release
	contrib/bare.sh $(DEBIAN) root 'make test-packages'
endif

# docs/pilot.md followed from the installation to the removal on three booted
# machines with Debian's Slurm, as root: minutes, and the first time the network.
test-newadmin: deps-test-newadmin packages-to-try
	contrib/newadmin/check.sh $(PACKAGES)

# The Ansible role on the same machines.
test-ansible: deps-test-ansible packages-to-try
	contrib/newadmin/ansible.sh $(PACKAGES)

clean:
	rm -rf bin lib build dist
	$(MAKE) -C contrib/simgpu clean
