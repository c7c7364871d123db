#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-or-later
#
# Tests the SPANK plugin without a slurmstepd. usage: check.sh BUILD-DIR PLUGIN
# N says how many hostile outputs of a helper (default 20000).
set -eu
here=$(cd "$(dirname "$0")" && pwd)
build=$1 plugin=$2
cc=${CC:-cc}
mkdir -p "$build"

echo "spank: under AddressSanitizer and UndefinedBehaviorSanitizer"
# Seconds, not a minute, for the helpers that say nothing.
$cc -std=gnu11 -D_GNU_SOURCE -O1 -g -Wall -Wextra -Werror -DSILENCE_MS=3000 -DCARMA_TASK_PROLOG='"/no/default"' \
	-I"${SLURM_INCLUDE:-/usr/include}" -fsanitize=address,undefined -fno-sanitize-recover=all \
	-o "$build/host" "$here/spank_carma.c" "$here/helper.c" "$here/lines.c" "$here/test/host.c"
"$build/host" "$build" "${N:-20000}" >"$build/host.log" || { tail -20 "$build/host.log"; exit 1; }
tail -1 "$build/host.log"

echo "spank: what the plugin exports and how it is linked"
exported=$(nm -D --defined-only "$plugin" | awk '{print $3}' | sort | tr '\n' ' ')
[ "$exported" = "plugin_name plugin_type plugin_version slurm_spank_init slurm_spank_init_post_opt slurm_spank_task_init spank_plugin_version " ] ||
	{ echo "spank: exports $exported"; exit 1; }
readelf -d "$plugin" | grep FLAGS_1 | grep -q NOW || { echo "spank: linked without NOW"; exit 1; }
if readelf -d "$plugin" | grep NEEDED | grep -qv 'libc\.\|ld-linux'; then
	echo "spank: needs more than libc"; readelf -d "$plugin" | grep NEEDED; exit 1
fi
