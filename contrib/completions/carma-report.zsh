#compdef carma-report
# Made of its flags by go test -update.
_arguments -s \
	'*--version[print the version]' \
	'*--jobs[only these JOBS, separated by commas]:JOBS: ' \
	'*-j[only these JOBS, separated by commas]:JOBS: ' \
	'*--user[only jobs of these USERS]:USERS: ' \
	'*-u[only jobs of these USERS]:USERS: ' \
	'*--accounts[only jobs of these ACCOUNTS]:ACCOUNTS: ' \
	'*-A[only jobs of these ACCOUNTS]:ACCOUNTS: ' \
	'*--partition[only jobs of these PARTITIONS]:PARTITIONS: ' \
	'*-r[only jobs of these PARTITIONS]:PARTITIONS: ' \
	'*--clusters[only jobs of these CLUSTERS]:CLUSTERS: ' \
	'*-M[only jobs of these CLUSTERS]:CLUSTERS: ' \
	'*--state[only jobs that ended in these STATES\: CD, F, CA, TO, OOM, NF]:STATES: ' \
	'*-s[only jobs that ended in these STATES\: CD, F, CA, TO, OOM, NF]:STATES: ' \
	'*--nodelist[only jobs that ran on these NODES\: n\[1-4,9\]]:NODES: ' \
	'*-N[only jobs that ran on these NODES\: n\[1-4,9\]]:NODES: ' \
	'*--name[only jobs of these NAMES]:NAMES: ' \
	'*--starttime[only jobs that ran after TIME\: now-2days, today, 2026-01-31T13\:00]:TIME: ' \
	'*-S[only jobs that ran after TIME\: now-2days, today, 2026-01-31T13\:00]:TIME: ' \
	'*--endtime[only jobs that ran before TIME]:TIME: ' \
	'*-E[only jobs that ran before TIME]:TIME: ' \
	'*--format[these COLUMNS\: JobID,State%20; +Saved adds to the usual ones ($CARMA_REPORT_FORMAT)]:COLUMNS: ' \
	'*-o[these COLUMNS\: JobID,State%20; +Saved adds to the usual ones ($CARMA_REPORT_FORMAT)]:COLUMNS: ' \
	'*--helpformat[list the columns]' \
	'*-e[list the columns]' \
	'*--noheader[no header]' \
	'*-n[no header]' \
	'*--parsable2[plain figures (MiB, seconds, joules) between |]' \
	'*-P[plain figures (MiB, seconds, joules) between |]' \
	'*--parsable[the same, with a | at the end of each line]' \
	'*-p[the same, with a | at the end of each line]' \
	'*--delimiter[with -P\: TEXT between the figures]:TEXT: ' \
	'*--allocations[accepted for compatibility with sacct; there are never steps]' \
	'*-X[accepted for compatibility with sacct; there are never steps]' \
	'*--units[memory in this UNIT\: K, M, G, T, P]:UNIT: ' \
	'*--noconvert[memory as plain MiB]' \
	'*--json[print JSON (docs/json.md)]' \
	'*--csv[print CSV with plain figures]' \
	'*--html[print an HTML page]' \
	'*--svg[print an SVG drawing]' \
	'*--table[a table even for one job]' \
	'*-t[a table even for one job]' \
	'*--by[summary\: group by these WORDS]:WORDS: ' \
	'*--write[history\: write history.file of carma.toml]' \
	'*--db[read this database FILE; may be given several times (default\: paths.db of carma.toml)]:FILE:_files' \
	'*--from[SOURCE of the records\: sqlite, the nodes'\'' databases; slurmdbd, if carma.toml has forward = "slurmdbd"]:SOURCE: ' \
	'*--config[FILE to read the configuration from]:FILE:_files' \
	'1:command:(summary gpus history)' \
	'*:file:_files'
