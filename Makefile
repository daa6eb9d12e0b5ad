# The two commands for a newcomer: make demo, make test. They need Go, make and
# git, nothing else.

GO       ?= go
VERSION  ?= $(shell git describe --tags --match 'v[0-9]*' --always --dirty 2>/dev/null || echo v0.0.0-unknown)
LDFLAGS   = -s -w -X main.version=$(VERSION)
# How the program is built: the same commit gives the same file wherever it is.
BUILD     = $(GO) build -p $(PARALLEL) -buildvcs=false -ldflags '$(LDFLAGS)'
# What `make deb` makes packages for, out of what, and where. Every date in a
# package is that of the commit.
ARCH     ?= amd64 arm64
DIST     ?= dist
# What `make dist` makes archives for, and of those of Linux an image. BUSYBOX= leaves
# the image out. DIST_KEY signs: an armored OpenPGP key, whose passphrase is in
# DIST_KEY_PASSPHRASE. APT_PREVIOUS is the apt repository of the release before.
PLATFORMS ?= linux/amd64 linux/arm64 darwin/amd64 darwin/arm64 windows/amd64 windows/arm64
BUSYBOX  ?= $(CURDIR)/.cache/busybox
DIST_KEY ?=
APT_PREVIOUS ?=
STAGE     = $(abspath $(DIST))/stage
# The tests that make what no program of the package can make of itself. To link
# them takes long, so they are linked once.
PACKAGING = cd cmd/agent && '$(STAGE)/agent.test'
# What an installed agent needs that has nothing to do.
FIGURES_OF_PACKAGE = ($(PACKAGING) -test.timeout 10m -test.run '^TestPackageFigures$$' -figures -agent '$(STAGE)/linux_$(NATIVE)/packaged')
NATIVE    = $(shell $(GO) env GOARCH)
# Two packages at a time: the large dependencies take memory to compile.
PARALLEL ?= 2
# Eight tests of a package at a time: those of a daemon mostly wait.
TESTS    ?= -parallel 8 -timeout 60m
# Nobody debugs a test's program, and vet has run before.
TEST      = $(GO) test -p $(PARALLEL) -vet=off -ldflags '-s -w' $(TESTS)
# The exhaustive tests. With the race detector a part of each is run, so they are
# run again without; ci_test.go checks that none is missing here. Of what has many
# crash points this is a part as well; "make faults" runs all of them.
EXHAUSTIVE = TestCrashAnywhere TestUninstallInterrupted TestEveryCallMayFail TestPrivileges TestInitConverges TestInitStopped TestQuietPass TestLabelOnOneNode TestKilledAgentRepeatsNothing \
	$(RACELESS)
# Of these the race detector gets none: they take minutes with it, and others run the same
# parts of the program.
RACELESS   = TestBareLabLeadsOn TestCIOfInitRepo TestDoctorSees TestKillMinusNineInChanges TestKillMinusNineInUpgrades TestLabCommand TestLabelOnOneOfManyNodes TestLooking \
	TestNoSecretEscapes TestOneOfTwoActs TestPolicyHoldsBesideAWrongConfig TestPolicyThatIsNotKnown TestQuickStart TestRollOutInTime TestScreens TestSupportBundle TestUpgradeInTime \
	TestScripts TestDocsRun TestKeysReplaced TestInitBringsUp TestNoRoomForRecords TestNotifications TestRenderAndDiff TestDaemonsOwnFiles TestMigratedVM TestForgetWithCommands TestTokenRevokedMidway TestDoctorCommand \
	TestAtTheShell TestDaemonInTheDark TestARefusedClusterIsTriedAgain TestChangeOfWhatAClusterKeeps TestUpgradeCommand TestNoRoomInTheCache TestWaitForWhatIsNotThereYet TestARepositoryWithoutClusters TestPolicyLostInARollout TestOneClusterThatCannotBeLookedAfter TestARepositoryThatIsEmptyYet TestOwnAuthoritiesAreAddedToTheSystems
EXHAUSTED  = ./cmd/agent ./reconcile/helm ./reconcile/proxmox
# Of these packages every test is exhaustive: with the race detector those run that
# raced_test.go names.
SIMULATED  = ./internal/daemon/agent
SEEDS    ?= 1000
# Of crash points and seeds one in so many is run.
THIN     ?= 1

# What a newcomer should know who waits; go lists what it compiles.
FIRST     = the first time that compiles 1,700 packages, about 4 minutes of CPU time; later, what has changed

export CGO_ENABLED ?= 0
# Nothing that is compiled knows a path, so that the program, the tests and the next
# clone share it.
export GOFLAGS := $(sort -trimpath $(GOFLAGS))

.DEFAULT_GOAL := help

.PHONY: help
help: ## list what can be made
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: build
build: bin/talos-agent ## build bin/talos-agent, one static file

.PHONY: bin/talos-agent
bin/talos-agent:
	@echo 'building bin/talos-agent: $(FIRST)'
	@$(BUILD) -v -o $@ ./cmd/agent

.PHONY: deb
deb: packages ## build the Debian packages in dist/ and print their figures (ARCH=amd64 for one)
	@$(MAKE) --no-print-directory figures

# figures prints what the program of each package needs, out of what packages staged.
.PHONY: figures
figures:
	@set -e; $(foreach arch,$(ARCH),$(if $(filter $(NATIVE),$(arch)),$(FIGURES_OF_PACKAGE);,echo '$(arch): not started, this machine is $(NATIVE)';))

.PHONY: boot
boot: ## see the package through its life on Debian 12 and 13, booted in containers (root)
	.ci/boot

# packages VERSIONS='v1 v2' makes packages of the same files under several versions.
.PHONY: packages
packages: VERSIONS ?= $(VERSION)
packages dist: export SOURCE_DATE_EPOCH ?= $(shell git log -1 --format=%ct 2>/dev/null)
packages:
	rm -rf '$(STAGE)'
	$(GO) test -c -ldflags '-s -w' -o '$(STAGE)/agent.test' ./cmd/agent
	$(PACKAGING) -test.run '^TestManual$$' -manual '$(STAGE)/manual'
	set -e; for version in $(VERSIONS); do $(MAKE) --no-print-directory packed VERSION="$$version"; done

# packed makes the packages of one version of what packages has staged.
.PHONY: packed
packed:
	set -e; for arch in $(ARCH); do $(call STAGED,linux,$$arch); done
	$(MKDIST) packages $(ARCH)

# STAGED builds the program for a system and an architecture.
STAGED    = GOOS=$(1) GOARCH=$(2) $(BUILD) -o '$(STAGE)'/$(1)_$(2)/talos-agent ./cmd/agent
MKDIST    = $(GO) -C packaging/deb/tools run ./mkdist $(RELEASED)
RELEASED  = -top '$(CURDIR)' -version '$(VERSION)' -stage '$(STAGE)' -out '$(abspath $(DIST))'
# What is run besides the program that signs does not get the passphrase of the key.
ALONE     = unset DIST_KEY_PASSPHRASE

.PHONY: dist
dist: ## make a release in dist/: packages, archives, image, apt repository (PLATFORMS=linux/amd64 for one)
	rm -rf '$(DIST)'/talos-agent_* '$(DIST)'/SHA256SUMS*
	$(ALONE); $(MAKE) --no-print-directory packages
	$(ALONE); set -e; for platform in $(filter-out $(ARCH:%=linux/%),$(PLATFORMS)); do $(call STAGED,$${platform%/*},$${platform#*/}); done
	$(if $(BUSYBOX),$(ALONE); packaging/deb/tools/get-busybox '$(BUSYBOX)' $(patsubst linux/%,%,$(filter linux/%,$(PLATFORMS))))
	$(ALONE); $(GO) -C packaging/deb/tools build -buildvcs=false -o '$(STAGE)/mkdist' ./mkdist
	'$(STAGE)/mkdist' $(RELEASED) -busybox '$(BUSYBOX)' -key '$(if $(DIST_KEY),$(abspath $(DIST_KEY)))' -previous '$(if $(APT_PREVIOUS),$(abspath $(APT_PREVIOUS)))' release $(PLATFORMS)

.PHONY: version
version:
	@echo '$(VERSION)'

# test RACE=-race is how CI runs it: with the race detector, without vet, which lint
# has run, and with the exhaustive tests in part; four of a package at a time, so that
# what waits for a real clock waits for fewer others. ONLY chooses packages and flags.
ONLY     ?= ./...
.PHONY: test
test: ## run all tests, with 100 seeds of the simulation
ifeq ($(RACE),)
	@echo 'building the tests: $(FIRST)'
	@$(GO) build -v -p $(PARALLEL) ./internal/... ./reconcile/... ./sources/...
	$(GO) vet -p $(PARALLEL) ./...
	@echo 'running the tests: about 5 minutes on two processors; each prints a line when it is done'
	$(TEST) $(ONLY)
else
	CGO_ENABLED=1 GORACE=atexit_sleep_ms=20 $(TEST) $(RACE) -parallel 4 -short $(ONLY)
endif

# With RACE, test runs a part of these.
.PHONY: exhaust
exhaust: ## run the exhaustive tests without the race detector, which gets a part of each (THIN=24 for one in 24 of crash points and seeds)
	@$(MAKE) --no-print-directory -j 2 exhaust-simulated exhaust-others

# Simulations compute, and many of the others wait.
.PHONY: exhaust-simulated exhaust-others
exhaust-simulated:
	TALOS_AGENT_THIN=$(THIN) $(TEST) $(SIMULATED)
exhaust-others:
	TALOS_AGENT_THIN=$(THIN) $(TEST) -run '^($(subst $(eval) ,|,$(strip $(EXHAUSTIVE))))$$' $(EXHAUSTED)

.PHONY: demo
demo: bin/talos-agent ## show the main job on the embedded lab
	bin/talos-agent demo

.PHONY: demo-day2
demo-day2: bin/talos-agent ## show what becomes of a cluster that runs, on the embedded lab
	bin/talos-agent demo --day-two --speed 20

.PHONY: demo-upgrade
demo-upgrade: bin/talos-agent ## show a cluster that gets another Talos, on the embedded lab
	bin/talos-agent demo --upgrade --speed 20

.PHONY: sim
sim: ## run as many seeds of the simulation, and of its upgrades, as SEEDS says
	$(GO) test ./internal/daemon/agent -run 'TestSeeds|TestUpgradeSeeds' -count=1 -timeout 0 -v -seeds $(SEEDS) -upgrade-seeds $(SEEDS)

.PHONY: faults
faults: ## what holds under faults, at length and with raw counts; hours
	.ci/faults

.PHONY: bench
bench: bin/talos-agent ## print the table of figures: speed and size
	cd cmd/agent && $(GO) test -run '^TestFigures$$' -count=1 -timeout 1h -figures -agent "$(CURDIR)/bin/talos-agent"
	$(GO) test -run '^$$' -bench Upgrade -benchtime 1x ./reconcile/plan

.PHONY: e2e
e2e: ## run the addon path against a real kube-apiserver and etcd, and a real kubectl at the lab
	.ci/e2e

.PHONY: clients
clients: ## type everyday commands of a real talosctl and OpenTofu at the lab, and count the calls of the latter
	.ci/clients

.PHONY: lint
lint: ## check formatting, vet and staticcheck
	.ci/lint

.PHONY: fuzz
fuzz: ## fuzz every target for FUZZTIME each
	.ci/fuzz

# The packages that are mutated, or files of them, and the commit since which lines count; "": all do.
# CI tries all of MUTATED_HELD, whatever a change touches; the others take half an hour and more.
MUTATED_HELD  ?= reconcile/quorum reconcile/bounds reconcile/readiness internal/cluster internal/cluster/window sources/forge \
	internal/host/harden internal/daemon/outbox internal/daemon/reporting
MUTATED_MORE  ?= reconcile/plan reconcile/effect reconcile/capacity reconcile/leftover reconcile/drift reconcile/action reconcile/rendering internal/host/config
MUTATED       ?= $(MUTATED_HELD) $(MUTATED_MORE) reconcile/journal reconcile:learn.go,begin.go,execute.go,status.go reconcile/proxmox:proof.go,delete.go
MUTATED_BASE  ?=
MUTATED_FLAGS ?=

.PHONY: mutants
mutants: ## drop one clause at a time from the packages MUTATED, and name what no test misses
	$(GO) -C .ci/mutants run . -root '$(CURDIR)' -base '$(MUTATED_BASE)' $(MUTATED_FLAGS) $(MUTATED)

.PHONY: mutants-held
mutants-held: ## the same for the packages that CI holds to it; what came of unchanged ones is remembered
	$(MAKE) mutants MUTATED='$(MUTATED_HELD)' MUTATED_FLAGS="-within 20s -memory '$$($(GO) env GOCACHE)/mutants'"

.PHONY: mutants-of-change
mutants-of-change: ## the same for a sample of the lines that the last two days changed
	$(MAKE) mutants MUTATED='$(MUTATED_HELD) $(MUTATED_MORE)' MUTATED_FLAGS='-sample 25' \
		MUTATED_BASE="$$(git rev-list -1 --before=$$(($$(git log -1 --format=%ct) - 172800)) HEAD)"

.PHONY: docs
docs: ## write the generated pages of docs/reference
	$(GO) test ./cmd/agent ./internal/api ./internal/cluster ./internal/host/config ./reconcile/ladder ./sources/inventory -run 'Reference|Schema|Screen' -update
