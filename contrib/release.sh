#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# A release of the last commit in DIR: the source archive, the packages of Debian 12
# and 13 and Ubuntu 24.04 for amd64 and arm64, RPMs, what is linked and under which
# licence, checksums. The packages are built from the archive in a new root each
# (bare.sh), as AS: root or user.
# usage: release.sh AS DIR
#        release.sh --twice DIR   one as root and one as a user with another umask and
#                                 clock, which must have the same bytes; DIR/1 is the release
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
top=$(cd "$here/.." && pwd)
die() { echo "release: $*" >&2; exit 1; }

# licence MODULE: a module that is linked and has no line here stops the release
licence() {
	case $1 in
	github.com/BurntSushi/toml | github.com/mattn/go-sqlite3) echo MIT ;;
	github.com/NVIDIA/go-nvml) echo Apache-2.0 ;;
	github.com/spf13/pflag | golang.org/x/sys) echo BSD-3-Clause ;;
	*) die "which licence has $1, which is linked? Add it to contrib/release.sh" ;;
	esac
}

heading() { printf '\n%s\n\n%s\n\n' "$(printf '=%.0s' {1..80})" "$*"; }

dependencies() {
	local path version dir word file all
	all=$(cd "$top" && go list -deps -f '{{with .Module}}{{if not .Main}}{{.Path}} {{.Version}} {{.Dir}}{{end}}{{end}}' \
		./cmd/... ./slurmbridge/libcarma | sort -u)
	cat <<-TEXT
	What CARMA for Slurm $version_of_carma is made with, and under which licence. The texts follow.

	Linked into carma-node, carma-report, carma-estimate, carma-sim and libcarma.so, in
	part or as a whole:

	$(printf '%-32s %-14s %s' "Go's runtime and library" "$(go env GOVERSION)" BSD-3-Clause)
	TEXT
	while read -r path version dir; do
		word=$(licence "$path") || exit 1
		printf '%-32s %-14s %s\n' "$path" "$version" "$word"
	done <<<"$all"
	cat <<-'TEXT'
	SQLite, within go-sqlite3                       public domain
	nvml.h, within go-nvml                          NVIDIA's notice, below

	C headers of the build machine, and libraries that are loaded at run time:

	slurm/slurm.h, slurm/slurm_errno.h of the Slurm that the plugin is for
	                                                GPL-2.0-or-later with OpenSSL exception
	                                                (slurmbridge/shim, which runs in slurmctld, is
	                                                GPL-2.0-or-later: slurmbridge/shim/COPYING)
	the C library (glibc)                           LGPL-2.1-or-later
	Linux' headers for programs                     GPL-2.0-only WITH Linux-syscall-note
	libnvidia-ml.so.1 of NVIDIA's driver, opened by carma-node where it is
	TEXT
	heading "Go"
	cat "$(go env GOROOT)/LICENSE"
	while read -r path version dir; do
		for file in "$dir"/LICENSE* "$dir"/COPYING* "$dir"/NOTICE*; do
			[ ! -f "$file" ] || { heading "$path, ${file##*/}" && cat "$file"; }
		done
		if [ "$path" = github.com/NVIDIA/go-nvml ]; then
			heading "nvml.h"
			sed -n '/^\/\*$/,/^ \*\/$/ { p; /^ \*\/$/q }' "$dir/pkg/nvml/nvml.h"
		fi
	done <<<"$all"
}

# release AS DIR
release() {
	local as=$1 dir=$2 name system sums
	name=carma-$version_of_carma
	rm -rf "$dir"
	mkdir -p "$dir"
	dir=$(cd "$dir" && pwd)
	# git takes the times from the commit, the owner from nobody, and modes from a setting.
	git -C "$top" -c tar.umask=0022 archive --prefix="$name/" HEAD | gzip -9n >"$dir/$name.tar.gz"
	for system in "debian12 bookworm" "debian13 trixie" "ubuntu24.04 noble"; do
		# The root has a clone of the same commit, whose archive has the same bytes.
		"$here/bare.sh" --keep packages "$dir/${system% *}" "${system#* }" \
			"$as" "make deps-all deps-test-arm64 && git archive --prefix=$name/ HEAD | tar x && cd $name && \
export GOFLAGS='-trimpath -buildvcs=false' && make packages && make GOARCH=arm64 packages && \
mkdir ../packages && cp build/packages/* build/arm64/packages/* ../packages/" ||
			die "the packages of ${system% *} could not be built"
		[ "$(git -C "$top" rev-parse HEAD)" = "$commit" ] || die "there has been a commit meanwhile: begin again"
	done
	# Debian 12 has the oldest C library. Plugins are for one Slurm each: a site with RPMs has a Slurm
	# of its own, and makes these packages for it (docs/pilot.md).
	mkdir "$dir/rpm"
	mv "$dir"/debian12/carma-*.rpm "$dir/rpm/"
	rm "$dir"/[du]*/*.rpm
	dependencies >"$dir/DEPENDENCIES.txt"
	sums=$(cd "$dir" && find . -type f -printf '%P\n' | LC_ALL=C sort | xargs sha256sum)
	echo "$sums" | tee "$dir/SHA256SUMS"
	chmod -R u=rwX,go=rX "$dir"
	echo "release: $name in $dir"
}

[ $# = 2 ] || { echo "usage: release.sh root|user DIR | --twice DIR" >&2; exit 2; }
[ -z "$(git -C "$top" status --porcelain)" ] || die "there are changes that are not committed: a release is of a commit"
commit=$(git -C "$top" rev-parse HEAD)
version_of_carma=$(sed -n 's/^version //p' "$top/VERSION")
grep -q "^## $version_of_carma\b" "$top/CHANGELOG.md" || die "CHANGELOG.md has no heading for $version_of_carma"
case $1 in
root | user) release "$1" "$2" ;;
--twice)
	release root "$2/1"
	(umask 077 && TZ=Asia/Kolkata release user "$2/2")
	diff -r "$2/1" "$2/2" || die "the second time other bytes came out"
	echo "release: twice the same bytes"
	;;
*) die "'$1' is neither root nor user nor --twice" ;;
esac
