#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# go test -exec as_root.sh: a test that was built by a user runs as root. Go's
# modules stay the user's, for root may have none and no network.
command -v sudo >/dev/null || { echo "as_root: these tests need root: become root, or install sudo" >&2; exit 1; }
exec sudo env PATH="$PATH:/usr/sbin:/sbin" GOMODCACHE="$(go env GOMODCACHE)" GOFLAGS="$(go env GOFLAGS)" \
	GOPROXY="$(go env GOPROXY)" GOSUMDB="$(go env GOSUMDB)" \
	CGO_CFLAGS="${CGO_CFLAGS:-}" SLURM_PREFIX="${SLURM_PREFIX:-}" \
	ENROOT_GIT="${ENROOT_GIT:-}" PYXIS_GIT="${PYXIS_GIT:-}" APPTAINER_GIT="${APPTAINER_GIT:-}" "$@"
