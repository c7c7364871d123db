# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash disable=SC2154
# devcluster up --slurmdbd: a MariaDB and a slurmdbd of the cluster's own, on
# loopback, below $dir/mysql.

# Ports: those after the nodes' and the anchor's.
dbd_port() { echo $((port + node_count + 2)); }
mysql_port() { echo $((port + node_count + 3)); }

check_dbd_parts() {
	local f
	for f in "$slurm_sbin/slurmdbd" "$slurm_plugins/accounting_storage_mysql.so" /usr/sbin/mariadbd /usr/bin/mariadb-install-db; do
		[ -e "$f" ] || die "$f is missing; run: make deps-test-integration"
	done
}

write_dbd() {
	local password
	password=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')
	mkdir -p "$dir/mysql"
	(
		umask 077
		cat >"$dir/mysql/init.sql" <<-TEXT
		CREATE DATABASE IF NOT EXISTS slurm_acct_db;
		CREATE USER IF NOT EXISTS 'slurm'@'127.0.0.1' IDENTIFIED BY '$password';
		GRANT ALL ON slurm_acct_db.* TO 'slurm'@'127.0.0.1';
		TEXT
		cat >"$dir/etc/slurmdbd.conf" <<-TEXT
		DbdHost=localhost
		DbdAddr=127.0.0.1
		DbdPort=$(dbd_port)
		SlurmUser=$slurm_user
		AuthType=auth/munge
		AuthInfo=socket=$dir/munge/s
		PidFile=$dir/pid/slurmdbd.raw
		LogFile=$dir/log/slurmdbd.log
		StorageType=accounting_storage/mysql
		StorageHost=127.0.0.1
		StoragePort=$(mysql_port)
		StorageUser=slurm
		StoragePass=$password
		StorageLoc=slurm_acct_db
		TEXT
		if [ -n "${SLURM_PREFIX:-}" ]; then echo "PluginDir=$slurm_plugins" >>"$dir/etc/slurmdbd.conf"; fi
		chown "$slurm_user" "$dir/etc/slurmdbd.conf"
	)
}

# start_dbd: before slurmctld, which wants its cluster to be known.
start_dbd() {
	start_mysql
	start_slurmdbd
	timeout 60 sacctmgr -iQ add cluster carma >>"$dir/log/sacctmgr.log" 2>&1 || die "slurmdbd does not take the cluster; see $dir/log/"
	timeout 60 sacctmgr -iQ add account ml Description=ml Organization=carma >>"$dir/log/sacctmgr.log" 2>&1 || die "slurmdbd does not take an account"
	timeout 60 sacctmgr -iQ add user "$(IFS=,; echo "${users[*]}")" Account=ml >>"$dir/log/sacctmgr.log" 2>&1 || die "slurmdbd does not take the users"
}

# What is lost with the machine may be lost: no fsync. MariaDB 11.6.2 and later have snapshot
# isolation by default: slurmdbd 26.05 ends at the first conflict, as Slurm's log says.
start_mysql() {
	local try
	# Seen to fail once where two clusters made theirs at the same moment.
	for try in 1 2 3; do
		rm -rf "$dir/mysql/data"
		mariadb-install-db --no-defaults --datadir="$dir/mysql/data" --user=root --skip-test-db >"$dir/log/mysql.out" 2>&1 && break
		[ "$try" -lt 3 ] || die "cannot make a MariaDB: $(tail -n 20 "$dir/log/mysql.out")"
	done
	setsid /usr/sbin/mariadbd --no-defaults --user=root --datadir="$dir/mysql/data" --socket="$dir/mysql/s" --pid-file="$dir/mysql/pid" \
		--bind-address=127.0.0.1 --port="$(mysql_port)" --init-file="$dir/mysql/init.sql" \
		--innodb-buffer-pool-size=64M --innodb-lock-wait-timeout=900 --innodb-flush-log-at-trx-commit=0 --loose-innodb-snapshot-isolation=OFF >>"$dir/log/mysql.out" 2>&1 </dev/null 8<&- &
	remember mysql $!
	disown
	wait_for 180 mysql_answers || die "MariaDB did not start; see $dir/log/mysql.out"
}

mysql_answers() { pid_of mysql >/dev/null && (exec 3<>"/dev/tcp/127.0.0.1/$(mysql_port)"); }

start_slurmdbd() {
	daemon slurmdbd "$slurm_sbin/slurmdbd"
	wait_for 180 timeout 20 sacctmgr -n show cluster || die "slurmdbd did not start; see $dir/log/slurmdbd.log"
}
