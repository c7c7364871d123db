#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Makes the manual pages from the Markdown beside this script: fills in the programs'
# own help, the table of keys and carma.toml, and has go-md2man make troff of it.
# The pages are committed, so that nobody needs go-md2man to install them.
set -eu
cd "$(dirname "$0")/../.."

indented() { sed 's/^/    /; s/[ \t]*$//'; }

keys() { # the rows of the table of #CARMA keys, as a list of definitions
	awk -F'|' '/^[|] `on` / { table = 1 } !/^[|]/ { table = 0 } table {
		gsub(/`/, "")
		for (i = 2; i <= 4; i++) gsub(/^ +| +$/, "", $i)
		printf "**%s**%s\n: %s\n\n", $2, $3 == "" ? "" : " " $3, $4
	}' "$1"
}

statuses() {
	cat <<-TEXT
	**0**
	: success

	**1**
	: wrong usage or configuration

	**2**
	: nothing found

	**3**
	: database, node or cluster cannot be reached

	**4**
	: the database is newer than the program

	**5**
	: no permission

	**6**
	: carma-node doctor found something to fix, or unbook left jobs

	**70**
	: anything else
	TEXT
}

fill() {
	local line words
	while IFS= read -r line; do
		read -ra words <<<"${line//@/}"
		case $line in
		@help*) CARMA_CONF='' "bin/${words[1]}" --help | indented ;;
		@run*) "bin/${words[1]}" "${words[@]:2}" | indented ;;
		@file*) indented <"${words[1]}" ;;
		@keys*) keys "${words[1]}" ;;
		@status*) statuses ;;
		*) printf '%s\n' "$line" ;;
		esac
	done
}

for page in docs/man/*.md; do
	fill <"$page" | go run github.com/cpuguy83/go-md2man/v2@v2.0.7 >"${page%.md}"
done
