# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# Slurm's public source, for tests against other releases. It stays outside the
# repository: in $SLURM_GIT, a clone of github.com/SchedMD/slurm (a bare one
# serves), or one that is made in the cache directory.

cache=${XDG_CACHE_HOME:-$HOME/.cache}/carma/slurm

die() { echo "${0##*/}: $*" >&2; exit 1; }

# slurm_git: the directory of a clone that holds the release tags.
slurm_git() {
	local git=${SLURM_GIT:-$cache/slurm.git}
	if [ ! -d "$git" ]; then
		[ -z "${SLURM_GIT:-}" ] || die "SLURM_GIT=$SLURM_GIT is no directory"
		mkdir -p "$cache"
		git clone -q --bare https://github.com/SchedMD/slurm "$git" >&2 ||
			die "cannot clone Slurm's source; name a clone: SLURM_GIT=DIR ${0##*/}"
	fi
	echo "$git"
}

# newest GIT MAJOR.MINOR: its last release, as 23.11.11; empty if there is none
newest() { git -C "$1" tag -l "slurm-${2/./-}-*" | sed -n 's/^slurm-\([0-9]*\)-\([0-9]*\)-\([0-9]*\)-1$/\1.\2.\3/p' | sort -V | tail -1; }

# tag VERSION: the git tag of a release
tag() { echo "slurm-${1//./-}-1"; }
