#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Runs the tests on a release of Slurm and writes down what came of it: a row of
# runs.tsv, and the table of docs/slurm-conf.md, which is made of these rows.
# usage: record.sh suite               the integration tests; SLURM_PREFIX as for make
#        record.sh plugin [VERSION...] the plugin's, with the headers of releases (shim.sh)
#        record.sh log FILE SLURM ORIGIN RUN COMMIT
#                                      the last run of them in a log, as of .ci/run; RUN is
#                                      suite, or part where only some of them were run
# A row names the commit: the tree must be as committed. It is printed, too. A new
# row replaces that of the same release, origin and kind of run.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
top=$(cd "$here/../.." && pwd)
cd "$top"
runs=$here/runs.tsv

die() { echo "record: $*" >&2; exit 1; }

# row SLURM ORIGIN RUN PASSED FAILED SKIPPED: the last two are a number and names
row() {
	local line
	line=$(printf '%s\t' "$1" "$2" "$3" "$date" "$commit" "$4" "$5")$6
	echo "record: $line"
	{
		grep '^#' "$runs"
		{ awk -F '\t' -v s="$1" -v o="$2" -v r="$3" '!/^#/ && !($1 == s && $2 == o && $3 == r)' "$runs" && echo "$line"; } | sort -V
	} >"$runs.new"
	mv "$runs.new" "$runs"
}

# from_log LOG SLURM ORIGIN RUN: the row of the last integration tests in a log
from_log() {
	local passed failed skipped
	IFS='|' read -r passed failed skipped < <(awk '
		/^ *[0-9]+  (ok  |FAIL|skip) .* contrib\/devcluster / { ours = 1; sub(/:$/, "", $6); name[$2] = name[$2] " " $6; next }
		/^[0-9]+ passed, [0-9]+ failed, [0-9]+ skipped$/ && ours { row = $1 "|" $3 name["FAIL"] "|" $5 name["skip"]; ours = 0; delete name }
		END { print row }' "$1")
	[ -n "$passed" ] || die "the integration tests did not come to their end; see $1"
	row "$2" "$3" "$4" "$passed" "$failed" "$skipped"
}

suite() {
	local slurm origin="built from source" status=0 log=build/suite.log
	make -s deps-test-integration
	slurm=$("${SLURM_PREFIX:-/usr}/sbin/slurmctld" -V | awk '{ print $2 }')
	# shellcheck disable=SC1091
	[ -n "${SLURM_PREFIX:-}" ] || origin="$(. /etc/os-release && echo "${ID^} ${VERSION_ID:-$VERSION_CODENAME}") packages"
	make test-integration 2>&1 | tee "$log" || status=1
	from_log "$log" "$slurm" "$origin" suite
	return "$status"
}

plugin() {
	local v
	"$here/shim.sh" "$@" | tee build/plugin.log
	while read -r v; do row "$v" headers plugin 1 0 0; done < <(sed -n 's/^shim: slurm \([0-9.]*\): .*tests pass$/\1/p' build/plugin.log)
}

as_committed() {
	[ -z "$(git status --porcelain --untracked-files=no -- ':!contrib/versions/runs.tsv' ':!docs/slurm-conf.md')" ] ||
		die "the tree is not as committed: a row would name the wrong commit"
	commit=$(git rev-parse --short=10 HEAD) date=$(date -u +%F)
	mkdir -p build
}

status=0
case "${1:-} $#" in
"suite 1") as_committed && suite || status=1 ;;
"plugin "*) as_committed && plugin "${@:2}" || status=1 ;;
"log 6")
	commit=${6:0:10} date=$(date -u -r "$2" +%F)
	from_log "$2" "$3" "$4" "$5"
	;;
*) echo "usage: record.sh suite | plugin [VERSION...] | log FILE SLURM ORIGIN RUN COMMIT" >&2; exit 2 ;;
esac
"${GO:-go}" test ./docs -count=1 -run 'TestVersionsTable$' -update
exit $status
