#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-or-later
#
# Tests the shim without a slurmctld. usage: check.sh BUILD-DIR PLUGIN LIBCARMA
# N says how many hostile jobs (default 20000).
set -eu
here=$(cd "$(dirname "$0")" && pwd)
build=$1 plugin=$2 libcarma=$3
cc=${CC:-cc}
include=-I${SLURM_INCLUDE:-/usr/include}
# The shim finds what it takes of slurmctld by name: -rdynamic.
warn="-std=gnu11 -D_GNU_SOURCE -O1 -g -Wall -Wextra -Werror -rdynamic"

set --
for c in job_submit_carma ask text spank record whole worker queue library; do set -- "$@" "$here/$c.c"; done
for c in host slurmctld job checks refusals whole fairness hostile timing; do set -- "$@" "$here/test/$c.c"; done

mkdir -p "$build/fake/bin" "$build/real/bin" "$build/none/bin"
# shellcheck disable=SC2086
$cc $warn $include -fsanitize=address,undefined -fno-sanitize-recover=all -o "$build/fake/bin/host" "$@" -ldl -lpthread
# shellcheck disable=SC2086
$cc $warn -fPIC -shared -o "$build/fake/libcarma.so" "$here/test/fake_libcarma.c"
cp "$build/fake/bin/host" "$build/real/bin/host"
cp "$libcarma" "$build/real/libcarma.so"
printf '[partition.gpu]\nshare = true\ngpus_per_node = 4\ngpu_mem_mib = 40536\nrecovery = "gpu-recovery"\n[partition.gpu-recovery]\ngpus_per_node = 4\ngpu_mem_mib = 40536\n' >"$build/carma.toml"
rm -f "$build/carma.disable"

echo "shim: under AddressSanitizer and UndefinedBehaviorSanitizer"
CARMA_CONF=$build/carma.toml "$build/fake/bin/host" "${N:-20000}" >"$build/fake.log" || { tail -20 "$build/fake.log"; exit 1; }
tail -1 "$build/fake.log"
echo "shim: the same with the real libcarma"
CARMA_CONF=$build/carma.toml "$build/real/bin/host" real >"$build/real.log" || { tail -20 "$build/real.log"; exit 1; }
sed -n "s/^host: beside/shim: beside/p" "$build/real.log"

echo "shim: the real libcarma advises"
mkdir -p "$build/advise"
{ echo 'mode = "advise"'; cat "$build/carma.toml"; } >"$build/advise/carma.toml"
CARMA_CONF=$build/advise/carma.toml "$build/real/bin/host" advise >"$build/advise.log" || { tail -20 "$build/advise.log"; exit 1; }

echo "shim: found through a link, as from Slurm's own plugin directory"
mkdir -p "$build/link/bin"
ln -sf ../../real/bin/host "$build/link/bin/host"
CARMA_CONF=$build/carma.toml "$build/link/bin/host" real >"$build/real.log" || { tail -20 "$build/real.log"; exit 1; }

# shellcheck disable=SC2086
$cc $warn $include -O2 -o "$build/real/bin/time" "$@" -ldl -lpthread
CARMA_CONF=$build/carma.toml "$build/real/bin/time" time 10000 | sed 's/^/shim: /'

echo "shim: without a libcarma that could be loaded"
cp "$build/fake/bin/host" "$build/none/bin/host"
size=$(stat -c %s "$libcarma")
for part in missing 0 63 64 1000 $((size / 3)) $((size / 2)); do
	rm -f "$build/none/libcarma.so"
	[ "$part" = missing ] || head -c "$part" "$libcarma" >"$build/none/libcarma.so"
	CARMA_CONF=$build/carma.toml "$build/none/bin/host" none >"$build/none.log" || { echo "$part bytes of it:"; tail -20 "$build/none.log"; exit 1; }
done

echo "shim: what the plugin exports and how it is linked"
exported=$(nm -D --defined-only "$plugin" | awk '{print $3}' | sort | tr '\n' ' ')
[ "$exported" = "fini init job_modify job_submit plugin_name plugin_type plugin_version " ] ||
	{ echo "shim: exports $exported"; exit 1; }
flags=$(readelf -d "$plugin" | grep FLAGS_1)
case $flags in *NOW*NODELETE*) ;; *) echo "shim: linked without NOW and NODELETE: $flags"; exit 1 ;; esac
if readelf -d "$plugin" | grep NEEDED | grep -qv 'libc\.\|libdl\|libpthread\|ld-linux'; then
	echo "shim: needs more than libc"; readelf -d "$plugin" | grep NEEDED; exit 1
fi
