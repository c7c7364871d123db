// SPDX-License-Identifier: Apache-2.0

//go:build integration && situations

package devcluster_test

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// Situations of controllers, clusters and logins (docs/situations.md).

// A backup slurmctld takes over: with plugin and carma.toml all goes on; without carma.toml
// jobs are accepted as written; without the plugin it does not start, and jobs run on.
func TestSituationBackupController(t *testing.T) {
	c := up(t, "--nodes", "1")
	conf := filepath.Join(c.dir, "etc", "slurm.conf")
	text, err := os.ReadFile(conf)
	if err != nil {
		t.Fatal(err)
	}
	two := strings.Replace(string(text), "SlurmctldHost=localhost(127.0.0.1)",
		"SlurmctldHost=ctl1(127.0.0.1)\nSlurmctldHost=ctl2(127.0.0.2)\n"+
			"CommunicationParameters=NoCtldInAddrAny\nSlurmctldTimeout=10", 1)
	// start runs one of both controllers, each with a host name and a pid file of its own.
	start := func(host, setup string) (pid string) {
		t.Helper()
		log := c.dir + "/log/" + host
		own := c.dir + "/" + host
		c.sh("", "mkdir -p "+own+"; setsid unshare --uts --mount bash -c 'mount --bind "+own+" "+c.dir+"/pid\n"+
			"mount --bind "+c.dir+"/etc/hosts /etc/hosts; hostname "+host+"; "+setup+"; echo $$ >"+log+".pid\n"+
			"exec slurmctld -D -f "+conf+" -L "+log+".log' >>"+log+".out 2>&1 </dev/null &\n"+
			"until [ -s "+log+".pid ]; do sleep 0.1; done; sleep 1")
		pid = c.sh("", "cat "+log+".pid; rm "+log+".pid")
		t.Cleanup(func() { c.run("", "kill -9 "+pid) })
		return pid
	}
	kill := func(pid string) {
		c.sh("", "kill -9 "+pid+" 2>/dev/null; while kill -0 "+pid+" 2>/dev/null; do sleep 0.1; done")
	}
	up := func(host, state string) {
		t.Helper()
		c.eventually(func() string { out, _, _ := c.run("", "scontrol ping"); return out }, "at "+host+" is "+state)
	}
	// A job that backfill has started is saved with the next change of any job's that a user makes,
	// or after five minutes (slurmctld/state_save.c, controller.c). A controller that reads that it
	// waits starts it again, and drains the node ("Duplicate jobid"), without CARMA too.
	saved := func() {
		t.Helper()
		since := time.Now()
		c.sh(alice, "scancel "+c.sbatch(alice, "-H", train("10G", "1s")))
		c.eventually(func() string {
			info, err := os.Stat(filepath.Join(c.dir, "state", "job_state"))
			return fmt.Sprint(err == nil && info.ModTime().After(since))
		}, "true")
	}
	c.end("slurmctld")
	hosts := "127.0.0.1 localhost ctl1\n127.0.0.2 ctl2\n"
	for path, text := range map[string]string{conf: two, c.dir + "/etc/hosts": hosts} {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	first := start("ctl1", "true")
	up("ctl1", "UP")
	if out, err := devcluster("restart", c.dir, "slurmd").CombinedOutput(); err != nil {
		t.Fatalf("restart slurmd: %v\n%s", err, out)
	}
	c.eventually(func() string { return c.sh("", "sinfo -h -N -n n1 -p plain -o %T") }, "^idle$")
	stays := c.sbatch(alice, "", train("10G", "1h"))
	c.gpu(stays)

	second := start("ctl2", "true")
	up("ctl2", "UP")
	saved()
	kill(first)
	c.eventually(func() string { return c.job(stays, "%T") }, "RUNNING")
	id := c.sbatch(alice, "", train("10G", "1s"))
	if got := c.job(id, "%b"); !strings.Contains(got, "carma:10240") {
		t.Errorf("the backup has booked %s", got)
	}
	c.ends(id, "COMPLETED")
	if got := c.leases("n1"); got != stays {
		t.Errorf("leases of %s", got)
	}

	first = start("ctl1", "true") // takes control back
	up("ctl1", "UP")
	kill(second)
	second = start("ctl2", "export CARMA_CONF="+c.dir+"/etc/none.toml")
	up("ctl2", "UP")
	kill(first)
	// Until the node has registered, slurmctld allocates GPUs without their numbers; the Prolog
	// returns such a job, but not one that nothing has booked. The state that the backup recovers has
	// numbers of used GPUs, but not when slurmd started, which the registration tells.
	c.eventually(func() string { out, _, _ := c.run("", "scontrol -d show node n1"); return out },
		`(?s)GresUsed=gpu:a100:1\(IDX.*SlurmdStartTime=\d`)
	id = c.sbatch(alice, "", train("10G", "1s"))
	if got := c.job(id, "%b"); strings.Contains(got, "carma") {
		t.Errorf("without carma.toml it has booked %s", got)
	}
	c.ends(id, "COMPLETED")
	if out := c.sh("", "cat "+c.dir+"/log/ctl2.log"); !strings.Contains(out, "no usable carma.toml") {
		t.Errorf("the log of the backup says nothing:\n%s", tail([]byte(out), 2000))
	}

	first = start("ctl1", "true")
	up("ctl1", "UP")
	kill(second)
	start("ctl2", "mount -t tmpfs none "+c.dir+"/plugin/slurm")
	kill(first)
	c.eventually(func() string { return c.sh("", "cat "+c.dir+"/log/ctl2.log") }, "fatal: .*job_submit")
	start("ctl1", "true")
	up("ctl1", "UP")
	if got := c.job(stays, "%T") + c.leases("n1"); got != "RUNNING"+stays {
		t.Errorf("the job is %s", got)
	}
	c.sh(alice, "scancel "+stays)
	c.ends(stays, "CANCELLED")
	c.eventually(func() string { return c.leases("n1") }, "^$")
	c.nothingLeft()
}

// slurmd gets slurm.conf and gres.conf from slurmctld (configless). carma.toml does not come
// that way: it is a file of the node, and names the slurm.conf that slurmd has fetched.
func TestSituationConfigless(t *testing.T) {
	c := up(t, "--nodes", "1")
	c.slurmConf("SlurmctldParameters=enable_configless")
	c.end("slurmd.n1")
	port := c.sh("", "sed -n s/SlurmctldPort=//p $SLURM_CONF")
	// Commands look into /run/slurm/conf, where slurmd puts a link: hidden here from others. Until
	// it has a slurm.conf it looks for munge where that is by default.
	c.sh("", "mkdir -p "+c.dir+"/link /run/slurm /run/munge; ln -s s "+c.dir+"/munge/munge.socket.2")
	c.daemon("slurmd.n1", "unshare --mount bash -c 'mount --bind "+c.dir+"/link /run/slurm\n"+
		"mount --bind "+c.dir+"/munge /run/munge; unset SLURM_CONF\n"+
		"exec slurmd --conf-server localhost:"+port+" -N n1'")
	cache := c.dir + "/spool/n1/conf-cache/slurm.conf"
	c.eventually(func() string { return c.sh("", "ls "+cache+" 2>&1 || true") }, "^"+cache+"$")
	c.settings(map[string]string{"slurm.conf": `"` + cache + `"`})
	c.end("agent.n1")
	c.sh("", "env -u SLURM_CONF SIMGPU_STATE="+c.dir+"/simgpu/n1 setsid "+c.dir+"/bin/carma-node --config $CARMA_CONF "+
		"--node n1 agent >>"+c.dir+"/log/agent.n1.log 2>&1 </dev/null & "+c.remember("agent.n1", "$!"))
	c.eventually(func() string { return c.sh("", "sinfo -h -N -n n1 -p plain -o %T") }, "^idle$")
	c.wantCounts("n1", idleCounts)
	id := c.sbatch(alice, "", oomOnce) // its Epilog asks slurmctld
	c.ends(id, "COMPLETED")
	if r := c.report(id); !r.OOM || r.Attempts != 2 {
		t.Errorf("%+v", r)
	}
	c.wantCounts("n1", idleCounts)
	c.nothingLeft()
}

// A login by a real sshd and Slurm's pam_slurm_adopt goes into the user's job: it opens the
// job's GPUs and no other, and ends with it. Who has no job on the node is turned away.
func TestSituationAdoptedLogin(t *testing.T) {
	if os.Getenv("SLURM_PREFIX") != "" {
		t.Skip("pam_slurm_adopt is of one release of Slurm, and Debian has that of its own")
	}
	c := confined(t, "--time-scale", "10")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_, port, _ := net.SplitHostPort(l.Addr().String())
	l.Close()
	etc := c.dir + "/etc/"
	for name, text := range map[string]string{
		"pam": "auth required pam_permit.so\naccount required pam_slurm_adopt.so nodename=n1 log_level=debug\n" +
			"session required pam_permit.so\n",
		"sshd_config": "ListenAddress 127.0.0.1\nPort " + port + "\nHostKey " + etc + "key\nUsePAM yes\nStrictModes no\n" +
			"PidFile none\nAuthorizedKeysFile " + etc + "key.pub\n",
	} {
		if err := os.WriteFile(etc+name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	c.sh("", "ssh-keygen -q -t ed25519 -N '' -f "+etc+"key; mkdir -p -m 755 /run/sshd\n"+
		"unshare --mount bash -c 'mount --bind "+etc+"pam /etc/pam.d/sshd; exec /usr/sbin/sshd -D -e -f "+etc+
		"sshd_config' >"+c.dir+"/log/sshd 2>&1 </dev/null & "+c.remember("sshd", "$!"))
	t.Cleanup(func() { c.run("", "read -r pid _ <"+c.dir+"/pid/sshd; kill $pid") })
	login := func(user, command string) (string, error) {
		out, _, err := c.run("", "ssh -n -p "+port+" -i "+etc+"key -o StrictHostKeyChecking=no "+
			"-o UserKnownHostsFile=/dev/null "+user+"@127.0.0.1 '"+command+"'")
		return strings.TrimSpace(out), err
	}
	job := func(user string) string {
		id := c.sbatch(user, "", "#SBATCH --gres=gpu:1\n#CARMA mem=6G\necho gpu=$CARMA_GPU_UUIDS\nexec sleep 1h\n")
		c.gpu(id)
		return id
	}
	opens := c.dir + "/bin/simgpu devices " + c.dir + "/dev/n1"
	alices, bobs := job(alice), job(bob)
	for id, user := range map[string]string{alices: alice, bobs: bob} {
		var got string
		c.eventually(func() string { got, err = login(user, opens); return fmt.Sprint(err) }, "^<nil>$")
		if want := c.leased(id); got != want {
			t.Errorf("a login of %s opens %s, the job was leased %s", user, got, want)
		}
	}
	if out, err := login(carol, opens); err == nil {
		t.Errorf("a login without a job on the node opens %s", out)
	}
	ended := make(chan error, 1)
	go func() { _, err := login(alice, "touch "+c.dir+"/jobs/in; exec sleep 1h"); ended <- err }()
	c.eventually(func() string { return c.sh("", "ls "+c.dir+"/jobs") }, "(?m)^in$")
	c.sh(alice, "scancel "+alices)
	c.ends(alices, "CANCELLED")
	if err := <-ended; err == nil {
		t.Error("a login outlived its job")
	}
	c.sh(bob, "scancel "+bobs)
	c.ends(bobs, "CANCELLED")
	c.eventually(func() string { return c.leases("n1") }, "^$")
	c.nothingLeft()
}

// Two clusters with one slurmdbd: jobs that are submitted with -M are booked, leased and
// requeued by the cluster that runs them. A federation of them is refused by the doctor: its
// jobs are booked and leased where they run, and not requeued.
func TestSituationClusters(t *testing.T) {
	needsMySQL(t)
	c := up(t, "--nodes", "1", "--slurmdbd")
	second := up(t, "--nodes", "1")
	second.env = append(second.env, "SQUEUE_LOCAL=1") // a sibling's job, and not the origin's view of it
	second.end("agent.n1", "slurmd.n1", "slurmctld")
	users := alice + "," + bob + "," + carol
	c.sh("", "sacctmgr -iQ add cluster second\n"+
		"sacctmgr -iQ add account ml Description=ml Organization=carma Cluster=second\n"+
		"sacctmgr -iQ add user "+users+" Account=ml Cluster=second\n"+
		"port=$(sed -n s/^AccountingStoragePort=//p $SLURM_CONF); sed -i \"s/^ClusterName=.*/ClusterName=second/\n"+
		"s#socket=[^,]*#socket="+c.dir+"/munge/s#\ns#^AccountingStorageType=.*#AccountingStorageType="+
		"accounting_storage/slurmdbd\\nAccountingStorageHost=127.0.0.1\\nAccountingStoragePort=$port\\n"+
		"AccountingStoragePass="+c.dir+"/munge/s#\" "+second.dir+"/etc/slurm.conf; rm -rf "+second.dir+"/state/*")
	second.restart("slurmctld")
	second.restart("slurmd")
	second.restart("agent")
	second.eventually(func() string { return second.sh("", "sinfo -h -N -n n1 -p plain -o %T") }, "^idle$")
	second.wantCounts("n1", idleCounts)
	c.eventually(func() string { out, _, _ := c.run("", "squeue -M second"); return out }, "JOBID")

	ends := func(id, state string) {
		t.Helper()
		second.ends(id, state)
		second.eventually(func() string { return second.leases("n1") }, "^$")
	}
	id := c.sbatch(alice, "-M second", train("10G", "1s"))
	ends(id, "COMPLETED")
	if r := second.report(id); r.State != "COMPLETED" || r.ReserveMiB != 10240 {
		t.Errorf("-M: %+v", r)
	}
	second.notePeaksIn(filepath.Join(c.dir, "jobs")) // where its jobs are submitted
	id = c.sbatch(alice, "-M second", oomOnce)
	ends(id, "COMPLETED")
	if r := second.report(id); !r.OOM || r.Attempts != 2 {
		t.Errorf("-M, out of GPU memory: %+v", r)
	}

	doctor := func() string { out, _, _ := second.run("", "carma-node doctor --controller"); return out }
	if out := doctor(); strings.Contains(out, "federation") {
		t.Errorf("the doctor says\n%s", out)
	}
	c.sh("", "sacctmgr -iQ add federation sites clusters=carma,second")
	c.eventually(func() string { return c.sh("", "scontrol show federation") }, "Synced:Yes")
	c.eventually(doctor, "belongs to federation sites")
	full := c.sbatch(bob, "--clusters=carma", "#SBATCH --gres=gpu:4\n#CARMA policy=exclusive\nexec sleep 1h\n")
	c.eventually(func() string { return c.job(full, "%T") }, "RUNNING")
	id = c.sbatch(alice, "", train("10G", "1s"))
	ends(id, "COMPLETED")
	if r := second.report(id); r.State != "COMPLETED" || r.ReserveMiB != 10240 {
		t.Errorf("as a sibling: %+v", r)
	}
	id = c.sbatch(alice, "", oomOnce)
	ends(id, "FAILED")
	if r := second.report(id); !r.OOM || r.Attempts != 1 {
		t.Errorf("as a sibling, out of GPU memory: %+v", r)
	}
	c.sh("", "scancel "+full)
	c.eventually(func() string { return c.leases("n1") }, "^$")
	c.nothingLeft()
	second.nothingLeft()
}
