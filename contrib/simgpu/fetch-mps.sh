#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Fetches the real MPS control daemons of 535 and 550, which Debian has in non-free,
# for make test-mps, and prints the directory that has them as 535/ and 550/:
# ${XDG_CACHE_HOME:-~/.cache}/carma-mps. apt checks Debian's signatures, in a
# directory of its own: this machine's sources and packages stay as they are. The
# mirror is this machine's. What is there is not fetched again.
set -euo pipefail

die() { echo "fetch-mps: $*" >&2; exit 1; }
cache=${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/carma-mps
keys=/usr/share/keyrings/debian-archive-keyring.gpg

mirror() {
	# shellcheck disable=SC2016
	apt-get indextargets --format '$(REPO_URI)|$(ORIGIN)|$(LABEL)|$(COMPONENT)' 'Created-By: Packages' |
		awk -F '|' '$2 == "Debian" && $3 == "Debian" && $4 == "main" { print $1; exit }'
}

# fetch RELEASE VERSION
fetch() {
	local apt=$work/$1 from deb
	[ ! -x "$cache/$2/usr/bin/nvidia-cuda-mps-control" ] || return 0
	from=$(mirror)
	from=${from:-http://deb.debian.org/debian}
	mkdir -p "$apt/lists/partial" "$apt/archives/partial" "$apt/none"
	echo "deb [arch=amd64 signed-by=$keys] $from $1 non-free" >"$apt/sources"
	# As root apt fetches as _apt, who cannot write here.
	set -- "$1" "$2" -qq -o "Dir::Etc::SourceList=$apt/sources" -o "Dir::Etc::SourceParts=$apt/none" -o "Dir::State::Lists=$apt/lists" \
		-o "Dir::Cache=$apt" -o "Dir::Cache::Archives=$apt/archives" -o APT::Sandbox::User= -o APT::Architecture=amd64 \
		-o "Dir::Etc::PreferencesParts=$apt/none"
	apt-get "${@:3}" update >&2 || die "no package list of Debian's $1 non-free at $from"
	(cd "$apt" && apt-get "${@:3}" download nvidia-cuda-mps) >&2 || die "no nvidia-cuda-mps in Debian's $1 non-free"
	deb=$(echo "$apt"/nvidia-cuda-mps_*.deb)
	case $deb in */nvidia-cuda-mps_"$2".*) ;; *) die "Debian's $1 has ${deb##*/}, not $2" ;; esac
	dpkg-deb -x "$deb" "$apt/root"
	rm -rf "${cache:?}/$2"
	mkdir -p "$cache"
	mv "$apt/root" "$cache/$2"
}

[ "$(uname -m)" = x86_64 ] || die "Debian has these for amd64 alone"
[ -e "$keys" ] || die "$keys is missing: install debian-archive-keyring"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fetch bookworm 535
fetch trixie 550
echo "$cache"
