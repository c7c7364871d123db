#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Builds deb and rpm out of what `make install` put into STAGE.
# usage: build.sh STAGE OUT VERSION     (make packages does)
# SLURM_PLUGIN_DIR names Slurm's own plugin directory, where it is none of the
# packages' of Debian or SchedMD. NFPM names a built nfpm; else it is run from its Go module.
set -euo pipefail

[ $# = 3 ] || { echo "usage: build.sh STAGE OUT VERSION" >&2; exit 2; }
here=$(cd "$(dirname "$0")" && pwd)
stage=$(cd "$1" && pwd) version=$3
mkdir -p "$2"
out=$(cd "$2" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# The same bytes from the same source: files are as old as the commit.
if [ -n "${SOURCE_DATE_EPOCH:-}" ]; then find "$stage" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +; fi

# The last release whose modules a plain Go proxy has. nfpm runs here, whichever machine the packages are for.
nfpm() {
	if [ -n "${NFPM:-}" ]; then
		"$NFPM" "$@"
	else
		(cd / && CGO_ENABLED=0 GOARCH='' GOFLAGS=-mod=mod "${GO:-go}" run github.com/goreleaser/nfpm/v2/cmd/nfpm@v2.43.4 "$@")
	fi
}

# slurm_of PLUGIN: the release that a plugin is built for, as 22.05.8
slurm_of() {
	local at number
	at=$(readelf -sW "$1" | awk '$8 == "plugin_version" { at = $2 } END { print at }')
	# .rodata: addresses are offsets in the file (the linker puts it there so).
	number=$(od -An -tu4 -j "$((16#$at))" -N 4 "$1" | tr -d ' ')
	printf '%d.%02d.%d\n' $((number >> 16 & 255)) $((number >> 8 & 255)) $((number & 255))
}

# glibc_of FILE...: the newest version of the C library that they need
glibc_of() { readelf -W --dyn-syms "$@" | grep -o 'GLIBC_2\.[0-9]*' | sed 's/GLIBC_//' | sort -uV | tail -1; }

head_of() { # NAME DESCRIPTION
	cat <<-TEXT
	name: $1
	arch: $("${GO:-go}" env GOARCH)
	platform: linux
	version: $version
	version_schema: none
	section: admin
	priority: optional
	maintainer: CARMA for Slurm maintainers <carma@localhost>
	description: |
	  $2
	license: $3
	TEXT
}

tree() { # SOURCE [DESTINATION [MODE]]
	printf '  - src: %s\n    dst: %s\n' "$stage$1" "${2:-$1}"
	[ -z "${3:-}" ] || printf '    file_info:\n      mode: %s\n' "$3"
}

# of_command NAME: its completions
of_command() {
	tree "/usr/share/bash-completion/completions/$1"
	tree "/usr/share/zsh/vendor-completions/_$1"
	tree "/usr/share/fish/vendor_completions.d/$1.fish"
}

# manual NAME.SECTION...
manual() { local m; for m in "$@"; do tree "/usr/share/man/man${m##*.}/$m"; done; }

link() { printf '  - src: %s\n    dst: %s\n    type: symlink\n' "$1" "$2"; }

tools() {
	local f libc
	libc=$(glibc_of "$stage"/usr/bin/carma-{estimate,report,sim})
	head_of carma-tools "CARMA for Slurm: estimates and reports for users" Apache-2.0
	echo contents:
	for f in estimate report sim; do tree "/usr/bin/carma-$f" "" 0755; done
	for f in trace summary; do link "../share/carma/python/carma_$f.py" "/usr/bin/carma-$f"; done
	for f in "$stage"/usr/share/carma/python/*; do tree "${f#"$stage"}" "" "$(stat -c 0%a "$f")"; done
	for f in estimate report trace summary; do of_command "carma-$f"; done
	manual carma-estimate.1 carma-report.1 carma-sim.1 carma-trace.1 carma-summary.1 carma-directives.7
	# What earlier runs teach, made where the records come together.
	for f in service timer; do tree "/usr/lib/systemd/system/carma-history.$f"; done
	cat <<-TEXT
	scripts: {preremove: $here/tools.prerm}
	overrides:
	  deb: {depends: ["libc6 (>= $libc)"], recommends: [python3]}
	  rpm: {depends: ["glibc >= $libc"], recommends: [python3]}
	TEXT
}

node() {
	local h libc
	libc=$(glibc_of "$stage/usr/sbin/carma-node")
	head_of carma-node "CARMA for Slurm: agent and hooks of a GPU node" Apache-2.0
	echo contents:
	tree /usr/sbin/carma-node "" 0755
	for h in prolog task-prolog epilog; do link carma-node "/usr/sbin/carma-$h"; done
	tree /usr/lib/systemd/system/carma-node.service
	tree /usr/lib/tmpfiles.d/carma.conf
	printf '  - src: %s\n    dst: /etc/logrotate.d/carma-node\n    type: config|noreplace\n' "$stage/etc/logrotate.d/carma-node"
	tree /usr/share/carma/carma-health "" 0755
	of_command carma-node
	manual carma-node.8 carma.7 carma.toml.5
	for h in carma.toml slurm.conf gres.conf plugstack.conf tmpfiles.conf carma.json carma.rules.yml; do tree "/usr/share/carma/$h"; done
	cat <<-TEXT
	scripts: {postinstall: $here/node.postinst, preremove: $here/node.prerm, postremove: $here/node.postrm}
	overrides:
	  deb: {depends: ["libc6 (>= $libc)"], recommends: [slurmd]}
	  rpm: {depends: ["glibc >= $libc", grep, sed]}
	TEXT
}

# Slurm finds the plugin in its own directory: a PluginDir of CARMA's would have
# to be there on every machine that reads slurm.conf, or nothing of Slurm starts.
plugin_links() {
	local dir multiarch
	# shellcheck disable=SC2086
	multiarch=$(${CC:-gcc} -print-multiarch)
	if [ -n "${SLURM_PLUGIN_DIR:-}" ]; then
		link /usr/lib/carma/slurm/job_submit_carma.so "$SLURM_PLUGIN_DIR/job_submit_carma.so"
		return
	fi
	for dir in "deb /usr/lib/$multiarch/slurm-wlm" "deb /usr/lib/$multiarch/slurm" "rpm /usr/lib64/slurm"; do # Debian's, SchedMD's
		link /usr/lib/carma/slurm/job_submit_carma.so "${dir#* }/job_submit_carma.so"
		echo "    packager: ${dir% *}"
	done
}

# slurmctld loads a plugin of its exact release only, and does not start with
# one that it cannot load: the package must go where slurmctld goes. Depends
# alone does not stop dpkg from upgrading slurmctld, and Breaks only before it is
# configured; Conflicts does.
plugin() {
	local slurm next libc
	slurm=$(slurm_of "$stage/usr/lib/carma/slurm/job_submit_carma.so")
	next=${slurm%.*}.$((${slurm##*.} + 1))
	libc=$(glibc_of "$stage"/usr/lib/carma/libcarma.so "$stage"/usr/lib/carma/slurm/job_submit_carma.so)
	version="$version+slurm$slurm" head_of slurm-plugin-carma "CARMA for Slurm: job_submit plugin for Slurm $slurm" "Apache-2.0 and GPL-2.0-or-later"
	echo contents:
	tree /usr/lib/carma/libcarma.so "" 0644
	tree /usr/lib/carma/slurm/job_submit_carma.so "" 0644
	plugin_links
	cat <<-TEXT
	scripts: {preremove: $here/plugin.prerm}
	overrides:
	  deb:
	    depends: ["libc6 (>= $libc)", "slurmctld (>= $slurm) | slurm-smd-slurmctld (>= $slurm)"]
	    conflicts: ["slurmctld (<< $slurm)", "slurmctld (>= $next~)", "slurm-smd-slurmctld (<< $slurm)", "slurm-smd-slurmctld (>= $next~)"]
	  rpm:
	    depends: ["glibc >= $libc", grep, sed, "slurm-slurmctld >= $slurm", "slurm-slurmctld < $next"]
	TEXT
}

# slurmstepd loads a SPANK plugin of its major and minor release, and goes on without one of
# another ("optional" in plugstack.conf): where slurm.conf has no TaskProlog, tasks are then told
# nothing. So this package goes where slurmd goes, too.
spank() {
	local slurm next libc
	slurm=$(slurm_of "$stage/usr/lib/carma/slurm/spank_carma.so")
	slurm=${slurm%.*}
	next=${slurm%.*}.$(printf '%02d' $((10#${slurm##*.} + 1)))
	libc=$(glibc_of "$stage/usr/lib/carma/slurm/spank_carma.so")
	version="$version+slurm$slurm" head_of slurm-spank-carma "CARMA for Slurm: SPANK plugin for Slurm $slurm" GPL-2.0-or-later
	echo contents:
	tree /usr/lib/carma/slurm/spank_carma.so "" 0644
	cat <<-TEXT
	overrides:
	  deb:
	    depends: ["libc6 (>= $libc)", carma-node, "slurmd (>= $slurm) | slurm-smd-slurmd (>= $slurm)"]
	    conflicts: ["slurmd (<< $slurm)", "slurmd (>= $next~)", "slurm-smd-slurmd (<< $slurm)", "slurm-smd-slurmd (>= $next~)"]
	  rpm:
	    depends: ["glibc >= $libc", carma-node, "slurm-slurmd >= $slurm", "slurm-slurmd < $next"]
	TEXT
}

# The scripts before a removal read slurm.conf with grep and sed: without these they would refuse nothing. Debian always
# has both, and a package for rpm names them.
for package in tools node plugin spank; do
	"$package" >"$work/$package.yaml"
	for format in deb rpm; do
		nfpm package --config "$work/$package.yaml" --packager "$format" --target "$out" >"$work/log" 2>&1 ||
			{ cat "$work/log" >&2; exit 1; }
	done
done
ls "$out"
