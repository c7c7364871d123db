#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Installs what building and trying CARMA needs from Debian's packages, and
# says what. Services that the packages bring are kept from starting: the
# development cluster starts its own.
set -eu

missing=
for p in slurmctld slurmd slurm-client libslurm-dev slurm-wlm-basic-plugins munge "$@"; do
	dpkg-query -W -f='${Status}' "$p" 2>/dev/null | grep -q 'install ok installed' || missing="$missing $p"
done
[ -n "$missing" ] || exit 0

as_root=
if [ "$(id -u)" != 0 ]; then
	command -v sudo >/dev/null || { echo "deps: need root or sudo to install:$missing" >&2; exit 1; }
	as_root=sudo
fi
echo "deps: installing from Debian's packages:$missing"

# policy-rc.d is what Debian's packages ask before they start a service.
policy=/usr/sbin/policy-rc.d
made_policy=
if [ ! -e "$policy" ]; then
	made_policy=yes
	trap '$as_root rm -f "$policy"' EXIT
	trap 'exit 130' INT TERM
	printf '#!/bin/sh\nexit 101\n' | $as_root sh -c "cat >$policy && chmod 755 $policy"
fi
$as_root apt-get update -qq
# shellcheck disable=SC2086
DEBIAN_FRONTEND=noninteractive $as_root apt-get install -y -qq --no-install-recommends $missing >/dev/null
[ -z "$made_policy" ] || echo "deps: done"
